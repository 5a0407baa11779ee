"""Looks closer after the timed window, when slowing the program no longer matters: sampled lines, a profiler trace."""

from __future__ import annotations

import _thread
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hotlap.observe.followed import FOLLOW_STEPS, LineFollower, may_follow
from hotlap.observe.stacks import Call, Stacks, in_a_module, users_call
from hotlap.patch.ledger import Ledger
from hotlap.patch.operations import watching
from hotlap.records import private
from hotlap.records.observation import FORWARD, REST, HotLine

INTERVAL = 0.004  # seconds between samples, at least
SPENT = 1 / 20  # of the time for taking samples, at most: a deep stack takes long to write
KEEP = 20  # lines
LINES_SECONDS, LINES_STEPS = 1.5, 3
TRACE_SECONDS, TRACE_STEPS = 3.0, 5


class LineSampler:
    """Finds the training thread's current line of user code every few milliseconds, from a thread of its own."""

    def __init__(self, thread: int, phase: Callable[[], str]) -> None:
        self._stacks, self._phase = Stacks(thread), phase
        self._stop, self._over = threading.Event(), threading.Event()
        self._samples: Counter[tuple[Call, str]] = Counter()
        self._rest = self._unseen_forward = 0  # samples outside every phase; those of them inside a module's call

    def start(self) -> None:
        _thread.start_new_thread(self._run, ())  # not listed by the program's threading.enumerate()

    def stop(self) -> None:
        self._stop.set()
        self._over.wait(1.0)

    def _run(self) -> None:
        pause = INTERVAL
        while not self._stop.wait(pause):
            started = time.perf_counter()
            phase, calls = self._phase(), self._stacks.calls()
            if phase == REST:
                self._rest += 1
                if in_a_module(calls):
                    self._unseen_forward += 1
                    phase = FORWARD
            call = users_call(calls)
            if call is not None:
                self._samples[call, phase] += 1
            pause = max(INTERVAL, (time.perf_counter() - started) / SPENT)
        self._stacks.close()
        self._over.set()

    def with_every_forward(self, shares: Mapping[str, float]) -> dict[str, float]:
        """Move from the rest to the forward pass what the modules take that no phase times: frozen ones, and losses."""
        moved = shares.get(REST, 0.0) * self._unseen_forward / max(1, self._rest)
        changed = {REST: shares.get(REST, 0.0) - moved, FORWARD: shares.get(FORWARD, 0.0) + moved} if moved else {}
        return {**shares, **changed}

    def rows(self, step_ms: float, shares: Mapping[str, float]) -> tuple[HotLine, ...]:
        """Divide the time of each phase, as measured in the timed window, among the lines that were seen in it."""
        seen: Counter[str] = Counter()
        for (_, phase), count in self._samples.items():
            seen[phase] += count
        rows = []
        for (call, phase), count in self._samples.items():
            share = shares.get(phase, 0.0) * count / seen[phase]
            rows.append(HotLine(**call._asdict(), phase=phase, share=share, ms_per_step=share * step_ms))
        return tuple(sorted(rows, key=lambda row: -row.share)[:KEEP])


class Tracer:
    """Runs torch.profiler over a few steps and saves a Chrome trace, which the parent process reads."""

    def __init__(self, torch: Any, path: Path, on_cuda: bool, whole: bool) -> None:
        """Prepare the profiler. `whole` also records the host, for a trace to look at, but slows the host more."""
        kinds = torch.profiler.ProfilerActivity
        activities = ([kinds.CPU] if whole or not on_cuda else []) + ([kinds.CUDA] if on_cuda else [])
        self._profile = torch.profiler.profile(activities=activities, acc_events=True)  # avoids a warning
        self._torch, self._ledger = torch, Ledger()
        self.path = path
        self.steps = 0
        self.saved = False

    def start(self, give_way: Callable[[], None]) -> None:
        """Start tracing. give_way() must stop it when the program starts a profiler: torch runs one at a time."""
        self._profile.start()

        def layer(original: Any) -> Any:
            def _prepare_trace(profiler: Any) -> Any:
                with suppress(RuntimeError):  # torch raises if another thread starts one
                    give_way()
                return original(profiler)

            return _prepare_trace

        self._ledger.wrap(self._torch.autograd.profiler.profile, "_prepare_trace", layer)

    def stop(self) -> None:
        self._ledger.close()
        self._profile.stop()
        private.make_folder(self.path.parent)
        private.write_text(self.path, "")  # makes the file private before it has content
        self._profile.export_chrome_trace(str(self.path))
        self.saved = True


class Look:
    """Samples lines first, then traces what runs on the device, then follows each line."""

    def __init__(self) -> None:
        self.lines: LineSampler | None = None
        self.tracer: Tracer | None = None
        self.tracing = False
        self.follower: LineFollower | None = None
        self.following = False

    def at_lines(self, thread: int, phase: Callable[[], str]) -> None:
        self.lines = LineSampler(thread, phase)
        self.lines.start()

    def at_kernels(self, torch: Any, path: Path, on_cuda: bool, whole: bool) -> bool:
        if watching(torch)():
            return False  # the program has a profiler running
        tracer = Tracer(torch, path, on_cuda, whole)
        tracer.start(self.stop)
        self.tracer, self.tracing = tracer, True
        return True

    def at_every_line(self) -> bool:
        if not may_follow():
            return False
        self.follower, self.following = LineFollower(), True
        self.follower.start()
        return True

    def followed_enough(self) -> bool:
        """Count one more followed step; return whether that is enough."""
        assert self.follower is not None
        self.follower.steps += 1
        return self.follower.steps >= FOLLOW_STEPS

    def traced_enough(self) -> bool:
        """Count one more traced step; return whether that is enough."""
        assert self.tracer is not None
        self.tracer.steps += 1
        return self.tracer.steps >= TRACE_STEPS

    def stop(self) -> None:
        """Stop whichever is running."""
        if self.tracing:
            self.tracing = False
            assert self.tracer is not None
            self.tracer.stop()
        elif self.following:
            self.following = False
            assert self.follower is not None
            self.follower.stop()
        elif self.lines is not None:
            self.lines.stop()
