"""Synthetic pipe recordings and their log-mel spectra: what the microphones of the leak report would hear."""

from __future__ import annotations

import numpy as np
import torch

SAMPLE_RATE = 8192
SAMPLES_PER_SEGMENT = 2048  # a quarter of a second
FFT_LENGTH = 512
HOP = 256
MEL_BANDS = 32
CLASSES = ("background", "pump", "traffic", "leak")
BACKGROUND, PUMP, TRAFFIC, LEAK = range(4)
LEAK_SNR_DB = (-9.0, -6.0, -3.0, 0.0, 6.0, 12.0)
BURST_THRESHOLD = 0.25  # a segment with less traffic than this is labelled background


def shaped_noise(rng: np.random.Generator, gain: np.ndarray, samples: int) -> np.ndarray:
    """Gaussian noise with the given amplitude per frequency, scaled to unit power."""
    white = rng.standard_normal(samples, dtype=np.float32)
    noise = np.fft.irfft(np.fft.rfft(white) * gain, samples)
    return (noise / (noise.std() + 1e-12)).astype(np.float32)


def background(rng: np.random.Generator, samples: int) -> np.ndarray:
    """Sensor and soil noise: a tilt that differs from site to site, over a white floor."""
    frequency = np.fft.rfftfreq(samples, 1 / SAMPLE_RATE)
    tilt = rng.uniform(0.1, 0.9)
    gain = (40.0 / (frequency + 40.0)) ** tilt + rng.uniform(0.02, 0.1)
    return shaped_noise(rng, gain, samples)


def leak_hiss(rng: np.random.Generator, samples: int) -> np.ndarray:
    """Turbulent jet: band-limited noise coloured by the resonances of the pipe, steady in time."""
    frequency = np.fft.rfftfreq(samples, 1 / SAMPLE_RATE)
    low, high = rng.uniform(450, 900), rng.uniform(1700, 3000)
    band = 1 / (1 + (low / (frequency + 1)) ** 6) / (1 + (frequency / high) ** 6)
    pipe = rng.uniform(260, 420)
    resonances = np.zeros_like(frequency)
    for overtone in range(2, 8):
        width = rng.uniform(20, 60)
        resonances += rng.uniform(0.5, 2.0) / (1 + ((frequency - overtone * pipe) / width) ** 2)
    return shaped_noise(rng, band * (0.4 + resonances), samples) * slow_swell(rng, samples, 0.15)


def pump_hum(rng: np.random.Generator, samples: int) -> np.ndarray:
    """Rotor and blade harmonics, and the flow noise of a running pump, which overlaps a leak's band."""
    time = np.arange(samples, dtype=np.float64) / SAMPLE_RATE
    rotor, blades = rng.uniform(23, 49), int(rng.integers(5, 9))
    hum = np.zeros(samples, dtype=np.float32)
    for order in [*range(1, 9), blades, 2 * blades, 3 * blades, 4 * blades]:
        strength = rng.uniform(0.3, 1.0) * (1.0 if order % blades == 0 else order**-0.7)
        hum += (strength * np.sin(2 * np.pi * (rotor * order * time + rng.uniform()))).astype(np.float32)
    frequency = np.fft.rfftfreq(samples, 1 / SAMPLE_RATE)
    centre = rng.uniform(300, 1100)
    flow = shaped_noise(rng, 1 / (1 + ((frequency - centre) / 350) ** 2), samples)
    return hum / hum.std() + rng.uniform(0.1, 0.6) * flow


def traffic(rng: np.random.Generator, samples: int, segments: int) -> tuple[np.ndarray, np.ndarray]:
    """Passing vehicles: rumble and tyre noise under a bursty envelope; also the envelope per segment."""
    frequency = np.fft.rfftfreq(samples, 1 / SAMPLE_RATE)
    rumble = shaped_noise(rng, np.exp(-(((frequency - 70) / 70) ** 2)), samples)
    centre = rng.uniform(700, 1300)
    tyres = shaped_noise(rng, np.exp(-(((frequency - centre) / 350) ** 2)), samples)
    position = np.arange(samples) / samples
    envelope = np.zeros(samples, dtype=np.float32)
    for _ in range(max(1, round(segments / 12))):
        passing, width = rng.uniform(0, 1), rng.uniform(2, 5) / segments
        envelope += np.exp(-(((position - passing) / width) ** 2)).astype(np.float32)
    envelope = np.minimum(envelope, 1.0)
    sound = envelope * (rumble + rng.uniform(0.3, 0.8) * tyres)
    return sound, envelope.reshape(segments, -1).mean(axis=1)


def slow_swell(rng: np.random.Generator, samples: int, depth: float) -> np.ndarray:
    time = np.arange(samples) / SAMPLE_RATE
    wave = np.sin(2 * np.pi * (rng.uniform(0.1, 0.5) * time + rng.uniform()))
    return (1 + depth * wave).astype(np.float32)


def recording(rng: np.random.Generator, label: int, segments: int) -> tuple[np.ndarray, np.ndarray]:
    """One file: its samples and the class of every short segment.

    A leak keeps its class when a pump runs or cars pass beside it: the class is what must be reported.
    """
    samples = segments * SAMPLES_PER_SEGMENT
    sound = background(rng, samples)
    labels = np.full(segments, label, dtype=np.int64)
    if label == LEAK:
        sound = sound + decibels(rng.choice(LEAK_SNR_DB)) * leak_hiss(rng, samples)
    if label == PUMP or (label == LEAK and rng.uniform() < 0.25):
        sound = sound + decibels(rng.uniform(-6, 9)) * pump_hum(rng, samples)
    if label == TRAFFIC or (label == LEAK and rng.uniform() < 0.25):
        cars, envelope = traffic(rng, samples, segments)
        sound = sound + decibels(rng.uniform(0, 12)) * cars
        if label == TRAFFIC:
            labels[envelope < BURST_THRESHOLD] = BACKGROUND
    sensitivity = decibels(rng.uniform(-6, 6))
    return (sound * sensitivity).astype(np.float32), labels


def decibels(level: float) -> float:
    return float(10 ** (level / 20))


def mel_matrix() -> torch.Tensor:
    """Triangular filters, evenly spaced on the mel scale: [frequency bins, mel bands]."""
    bins = torch.linspace(0, SAMPLE_RATE / 2, FFT_LENGTH // 2 + 1, dtype=torch.float64)
    top = 2595 * np.log10(1 + SAMPLE_RATE / 2 / 700)
    mels = torch.linspace(2595 * float(np.log10(1 + 20 / 700)), float(top), MEL_BANDS + 2, dtype=torch.float64)
    edges = 700 * (10 ** (mels / 2595) - 1)
    rising = (bins[:, None] - edges[None, :-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[None, 2:] - bins[:, None]) / (edges[2:] - edges[1:-1])
    filters = torch.minimum(rising, falling).clamp(min=0)
    # Invariant: no band is empty, even where a band is narrower than one bin.
    nearest = (bins[:, None] - edges[None, 1:-1]).abs().argmin(dim=0)
    filters[nearest, torch.arange(MEL_BANDS)] = filters[nearest, torch.arange(MEL_BANDS)].clamp(min=0.5)
    return filters.float()


def log_mel(sound: np.ndarray, segments: int) -> np.ndarray:
    """[segments, 32, 1] decibels: the mean power of the frames of each quarter second."""
    pieces = torch.from_numpy(sound).view(segments, SAMPLES_PER_SEGMENT)
    window = torch.hann_window(FFT_LENGTH)
    spectrum = torch.stft(pieces, FFT_LENGTH, HOP, window=window, center=False, return_complex=True)
    power = spectrum.abs().square().mean(dim=-1) / FFT_LENGTH
    return (10 * torch.log10(power @ mel_matrix() + 1e-8)).unsqueeze(-1).numpy()
