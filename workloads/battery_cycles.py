"""Battery discharge cycles from an equivalent circuit, shared by the two battery workloads.

The cell is an open-circuit voltage behind R0 and two RC pairs. Resistance grows with age and in the cold,
capacity fades with age, and the cell heats itself. It is discharged by micro-trips of a vehicle (accelerate,
cruise, brake with regeneration, stand). State of charge follows from voltage, current and temperature, and
better from their history: the history separates the voltage under load from the one at rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

COLUMNS = ("time_s", "voltage_v", "current_a", "temperature_c", "soc")
BYTES_A_ROW = 48  # of CSV text, rounded up

NEW_CAPACITY_AH = 2.9
CAPACITY_FADE = 0.15  # lost at the end of life
RESISTANCE_GROWTH = 0.4  # gained at the end of life
R0_OHM, R1_OHM, R2_OHM = 0.028, 0.012, 0.018  # at 25 °C, when new
TAU1_S, TAU2_S = 15.0, 180.0
ARRHENIUS_K = 1700.0
AMBIENTS_C = (0.0, 10.0, 25.0, 40.0)
HEAT_CAPACITY_J_K, COOLING_W_K = 45.0, 0.12

# Open-circuit voltage of a cell with a flat middle, where the voltage alone says little.
OCV_SOC = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
OCV_VOLT = (2.90, 3.25, 3.40, 3.50, 3.545, 3.575, 3.605, 3.64, 3.69, 3.77, 3.88, 4.08)

VOLTAGE_NOISE_V, CURRENT_NOISE_A, TEMPERATURE_NOISE_C = 0.002, 0.015, 0.1


@dataclass(frozen=True)
class Campaign:
    """How much is measured: cycles for training and validation, rows in each, seconds between rows."""

    train_cycles: int
    valid_cycles: int
    rows: int
    step_seconds: float

    @property
    def bytes_needed(self) -> int:
        return (self.train_cycles + self.valid_cycles) * self.rows * BYTES_A_ROW


@dataclass(frozen=True)
class Cells:
    """What differs between the simulated cycles; every field has one entry per cycle."""

    age: Array
    ambient_c: Array
    first_soc: Array
    discharged: Array  # share of the capacity used over the cycle

    @property
    def capacity_as(self) -> Array:
        return 3600.0 * NEW_CAPACITY_AH * (1.0 - CAPACITY_FADE * self.age)


def write_campaign(folder: Path, campaign: Campaign, seed: int) -> None:
    """Write `train/cycle_000.csv`…, `valid/cycle_000.csv`…; each cycle is on one side of the split only."""
    random = np.random.default_rng(seed)
    count = campaign.train_cycles + campaign.valid_cycles
    table = simulate(campaign, count, random)
    for number in range(count):
        is_train = number < campaign.train_cycles
        name = f"cycle_{number if is_train else number - campaign.train_cycles:03d}.csv"
        target = folder / ("train" if is_train else "valid") / name
        target.parent.mkdir(exist_ok=True)
        write_csv(target, table[number])


def write_csv(path: Path, rows: Array) -> None:
    np.savetxt(path, rows, fmt="%.2f,%.4f,%.4f,%.2f,%.6f", header=",".join(COLUMNS), comments="")


def simulate(campaign: Campaign, count: int, random: np.random.Generator) -> Array:
    """Measured rows of `count` cycles, shaped [cycle, row, column]."""
    cells = draw_cells(count, random)
    current = drive_current(campaign, cells, random)
    voltage, temperature, soc = discharge(cells, current, campaign.step_seconds)
    time = np.broadcast_to(np.arange(campaign.rows) * campaign.step_seconds, current.shape)
    noisy_voltage = voltage + random.normal(0.0, VOLTAGE_NOISE_V, voltage.shape)
    noisy_current = current + random.normal(0.0, CURRENT_NOISE_A, current.shape)
    noisy_temperature = temperature + random.normal(0.0, TEMPERATURE_NOISE_C, temperature.shape)
    return np.stack([time, noisy_voltage, noisy_current, noisy_temperature, soc], axis=-1)


def draw_cells(count: int, random: np.random.Generator) -> Cells:
    return Cells(
        age=random.uniform(0.0, 1.0, count),
        ambient_c=random.choice(AMBIENTS_C, count),
        first_soc=random.uniform(0.9, 1.0, count),
        discharged=random.uniform(0.65, 0.85, count),
    )


def drive_current(campaign: Campaign, cells: Cells, random: np.random.Generator) -> Array:
    """Amperes, negative while discharging, scaled so that each cycle uses its share of the capacity."""
    count = len(cells.age)
    speed = np.stack([micro_trips(campaign, random) for _ in range(count)])
    acceleration = np.clip(np.gradient(speed, campaign.step_seconds, axis=1), -2.0, 1.2)
    power = 0.5 + 0.12 * speed + 0.0009 * speed**3 + 1.4 * speed * acceleration
    power = np.where(power < 0.0, 0.4 * power, power)  # brakes waste most of what they take
    used = power.sum(axis=1, keepdims=True) * campaign.step_seconds
    return -power / used * (cells.discharged * cells.capacity_as)[:, None]


def micro_trips(campaign: Campaign, random: np.random.Generator) -> Array:
    """Speed in m/s: straight lines between random speeds at random times, a quarter of them zero."""
    duration = campaign.rows * campaign.step_seconds
    knots = int(duration / 35.0) + 4
    times = np.cumsum(5.0 + random.gamma(2.5, 14.0, knots))
    speeds = random.uniform(3.0, 28.0, knots) * (random.uniform(size=knots) > 0.25)
    return np.interp(np.arange(campaign.rows) * campaign.step_seconds, times, speeds)


def discharge(cells: Cells, current: Array, step_seconds: float) -> tuple[Array, Array, Array]:
    """True voltage, temperature and state of charge; a loop over time, all cycles at once."""
    rows = current.shape[1]
    charge = np.cumsum(current, axis=1) * step_seconds
    soc = np.clip(cells.first_soc[:, None] + charge / cells.capacity_as[:, None], 0.0, 1.0)
    voltage, temperature = np.empty_like(current), np.empty_like(current)
    now_c = cells.ambient_c.copy()
    pair1, pair2 = np.zeros_like(now_c), np.zeros_like(now_c)
    keep1, keep2 = np.exp(-step_seconds / TAU1_S), np.exp(-step_seconds / TAU2_S)
    grown = 1.0 + RESISTANCE_GROWTH * cells.age
    for row in range(rows):
        amperes = current[:, row]
        factor = grown * np.exp(ARRHENIUS_K * (1.0 / (now_c + 273.15) - 1.0 / 298.15))
        pair1 = keep1 * pair1 + (1.0 - keep1) * R1_OHM * factor * amperes
        pair2 = keep2 * pair2 + (1.0 - keep2) * R2_OHM * factor * amperes
        drop = R0_OHM * factor * amperes + pair1 + pair2
        voltage[:, row] = np.interp(soc[:, row], OCV_SOC, OCV_VOLT) + drop
        temperature[:, row] = now_c
        heating = drop * amperes - COOLING_W_K * (now_c - cells.ambient_c)
        now_c = now_c + heating * step_seconds / HEAT_CAPACITY_J_K
    return voltage, temperature, soc
