"""A closer look after the timed window, when slowing the program no longer matters: sampled lines, a profiler trace."""

from __future__ import annotations

import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

from hotlap.model.observation import HotLine
from hotlap.observe.frames import place_of, user_frame

INTERVAL = 0.004
KEEP = 20


class LineSampler:
    """Finds the training thread's line of user code every few milliseconds, from a thread of its own."""

    def __init__(self, thread: int, phase: Callable[[], str]) -> None:
        self._watched, self._phase = thread, phase
        self._stop = threading.Event()
        self._samples: Counter[tuple[CodeType, int, str]] = Counter()
        self._thread = threading.Thread(target=self._run, name="hotlap-sampler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=1.0)

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL):
            phase = self._phase()
            frame = user_frame(sys._current_frames().get(self._watched))
            if frame is not None:
                self._samples[(frame.f_code, frame.f_lineno, phase)] += 1

    def rows(self, step_ms: float) -> tuple[HotLine, ...]:
        total = sum(self._samples.values())
        rows = []
        for (code, line, phase), count in self._samples.most_common(KEEP):
            place, share = place_of(code, line), count / total
            rows.append(
                HotLine(
                    file=place.file,
                    line=place.line,
                    function=place.function,
                    phase=phase,
                    share=share,
                    ms_per_step=share * step_ms,
                )
            )
        return tuple(rows)


class Tracer:
    """torch.profiler over a few steps, saved as a Chrome trace; the parent process reads what it says."""

    def __init__(self, torch: Any, path: Path, on_cuda: bool, whole: bool) -> None:
        """`whole` also records what runs on the host, which makes a trace to look at but slows the host more."""
        kinds = torch.profiler.ProfilerActivity
        activities = ([kinds.CPU] if whole or not on_cuda else []) + ([kinds.CUDA] if on_cuda else [])
        self._profile = torch.profiler.profile(activities=activities)
        self.path = path
        self.steps = 0
        self.saved = False

    def start(self) -> None:
        with warnings.catch_warnings():  # some torch warn of how profiles are read, which is not the user's concern
            warnings.simplefilter("ignore")
            self._profile.start()

    def stop(self) -> None:
        self._profile.stop()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._profile.export_chrome_trace(str(self.path))
        self.saved = True
