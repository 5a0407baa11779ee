"""How the step is run: captured, compiled, both or neither, chosen by a short measurement on real batches."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from hotlap.engine.errors import CaptureFailed, EngineError
from hotlap.engine.forks import NothingToFork
from hotlap.engine.processor import USUAL, Way, use
from hotlap.engine.recipe import Recipe
from hotlap.engine.recorder import Recorder, Work
from hotlap.engine.snapshot import HostTraces, Snapshot, disagreement, moved

WARM_UP = 3  # cuDNN, cuBLAS and the compiler choose and allocate before anything is captured or timed
MEASURED_SECONDS = 0.2
MOST_REPETITIONS = 50
MOST_TURNS = 20
CLEARLY = 0.87  # a way that rounds differently is taken only if it is clearly faster, so that runs repeat themselves
NEAR = 0.2  # of an update's norm: kernels that add in another order differ by less, a wrong replay by all of it
COMPILE_PAYS_FROM = 300.0  # seconds of training ahead: compiling takes up to a minute and gains some ten per cent
AUTOTUNING_PAYS_FROM = 3600.0  # it times kernels for minutes, and gains some per cent more


@dataclass(frozen=True)
class Mode:
    """`eager` is neither captured nor compiled; `forked` is a graph with weight gradients beside the backward pass."""

    graph: bool = False
    compiled: bool = False
    way: Way = USUAL
    forked: bool = False
    regions: bool = False  # compiled block by block rather than as a whole
    autotuned: bool = False  # compiled of kernels that the compiler has timed

    def __str__(self) -> str:
        words = {
            (True, True): "one CUDA graph, compiled",
            (True, False): "one CUDA graph",
            (False, True): "compiled",
            (False, False): "eager",
        }
        how = " by region" if self.regions else " with autotuning" if self.autotuned else ""
        return words[self.graph, self.compiled] + how + (", forked" if self.forked else "") + self.way.words

    def within(self, captures: bool, compiles: bool) -> Mode:
        """Return this mode where graphs or the compiler may not be available."""
        plain = self if compiles else replace(self, compiled=False, regions=False, autotuned=False)
        return plain if captures else replace(plain, graph=False, forked=False)


@dataclass(frozen=True)
class Trial:
    """Work that does one full window from the present state, and how to return to that state."""

    work: Callable[[Mode], Work]
    snapshot: Snapshot
    traces: Callable[[], HostTraces]
    parameters: Sequence[Tensor]
    recorder: Recorder | None
    windows: int  # that can follow each other from the present state on
    steps_ahead: int  # in the whole training
    ways: tuple[Way, ...]  # to be tried, the present one first
    may_fork: bool = False
    has_regions: bool = False


@dataclass(frozen=True)
class ExecutionChoice:
    mode: Mode
    run: Work
    line: str


class Attempts:
    """The modes tried; each starts from the same state and returns to it."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.runs: dict[Mode, tuple[float, Work]] = {}
        self.failed: dict[Mode, str] = {}

    def add(self, modes: Sequence[Mode], timed: bool) -> None:
        """Try these modes. On a GPU each is timed before the next is made, so that only one at a time takes memory;
        on a CPU they take turns, since other programs come and go.
        """
        at_once = timed and self.trial.recorder is not None
        for mode in modes:
            use(mode.way)
            try:
                run = _made(self.trial, mode)
                self.runs[mode] = (_seconds(self.trial, run) if at_once else 0.0, run)
            except NothingToFork:
                continue
            except Exception as error:
                if isinstance(error, EngineError) or not (mode.graph or mode.compiled):
                    raise
                self.failed[mode] = _first_line(error)
            finally:
                self.trial.snapshot.put_back()
        if timed and not at_once:
            self._by_turns()

    def _by_turns(self) -> None:
        best = dict.fromkeys(self.runs, math.inf)
        deadline = time.perf_counter() + MEASURED_SECONDS * len(self.runs)
        for turn in range(MOST_TURNS):
            for mode, (_, run) in self.runs.items():
                use(mode.way)
                seconds = _round(self.trial, run, 1)
                best[mode] = min(best[mode], seconds) if turn else math.inf  # the first turn warms up
            if turn and time.perf_counter() > deadline:
                break
        self.runs = {mode: (best[mode], run) for mode, (_, run) in self.runs.items()}

    @property
    def seconds(self) -> float:
        """The time of a step in the fastest mode."""
        return min((seconds for seconds, _ in self.runs.values()), default=0.0)

    def best(self) -> ExecutionChoice:
        if not self.runs:
            self.runs[Mode(way=self.trial.ways[0])] = (0.0, self.trial.work(Mode()))
        mode = min(
            self.runs, key=lambda tried: self.runs[tried][0] / (1.0 if tried.way == self.trial.ways[0] else CLEARLY)
        )
        use(mode.way)
        return ExecutionChoice(mode, self.runs[mode][1], _line(mode, self.runs, self.failed))


def choose(trial: Trial, recipe: Recipe, wanted: Mode | None = None) -> ExecutionChoice:
    """Return the fastest of the modes that work, or the one wanted; the state is restored to the bit."""
    attempts = Attempts(trial)
    if wanted is not None:
        attempts.add([wanted], timed=False)
        return attempts.best()
    graphs = {"auto": [False, True], "on": [True], "off": [False]}[recipe.graph] if trial.recorder else [False]
    asked = compile_asked(recipe, trial.has_regions)
    plain = [replace(asked, graph=graph, way=way) for graph in graphs for way in trial.ways]
    attempts.add(plain, timed=len(plain) > 1 or recipe.compile == "auto" or trial.may_fork)
    if not attempts.runs:  # the compiler failed
        attempts.add([Mode(graph, False, way) for graph in graphs for way in trial.ways], timed=len(plain) > 1)
    if trial.may_fork and not asked.compiled and any(mode.graph for mode in attempts.runs):
        attempts.add([Mode(True, False, trial.ways[0], forked=True)], timed=True)
    if recipe.compile == "auto" and attempts.seconds * trial.steps_ahead >= COMPILE_PAYS_FROM:
        attempts.add([Mode(graph, True, trial.ways[0]) for graph in graphs], timed=True)
        if trial.has_regions:
            attempts.add([Mode(graph, True, trial.ways[0], regions=True) for graph in graphs], timed=True)
        if attempts.seconds * trial.steps_ahead >= AUTOTUNING_PAYS_FROM:
            attempts.add([Mode(graph, True, trial.ways[0], autotuned=True) for graph in graphs], timed=True)
    if recipe.graph == "on" and not any(mode.graph for mode in attempts.runs):
        why = next(iter(attempts.failed.values()))
        raise CaptureFailed(f'graph="on", but the step cannot be captured: {why}; use graph="auto"')
    return attempts.best()


def compile_asked(recipe: Recipe, has_regions: bool) -> Mode:
    """Return how the recipe wants the step compiled in any case; a model without regions is compiled as a whole."""
    wanted = recipe.compile
    by_region = wanted == "regions" and has_regions
    return Mode(compiled=wanted not in ("auto", "off"), regions=by_region, autotuned=wanted == "max-autotune")


def needs_no_trial(recipe: Recipe, can_capture: bool, seconds_ahead: float) -> bool:
    """Return whether the step is worth running only as it is, neither captured nor compiled."""
    compiles = recipe.compile != "off" and (recipe.compile != "auto" or seconds_ahead >= COMPILE_PAYS_FROM)
    captures = recipe.graph == "on" or (recipe.graph == "auto" and can_capture)
    return not compiles and not captures


class NotReplayable(Exception):
    """A replay would not repeat this step."""


def _made(trial: Trial, mode: Mode) -> Work:
    work = trial.work(mode)
    if not mode.graph:
        if mode.compiled:
            _warm_up(trial, work)
        return work
    assert trial.recorder is not None
    expected = _rehearsed(trial, work)
    if mode.forked:
        expected = _rehearsed(trial, trial.work(Mode()))  # so that it is compared with a step without forks
    replay = trial.recorder.capture(work)
    trial.snapshot.put_back()
    before = [parameter.detach().clone() for parameter in trial.parameters]
    replay()
    apart = disagreement(expected, moved(list(trial.parameters), before))
    trial.snapshot.put_back()
    if apart > NEAR:
        raise NotReplayable(f"a replay trains differently from the step itself (by {apart:.0%} of its update)")
    return replay


def _rehearsed(trial: Trial, work: Work) -> list[Tensor]:
    """Return how the parameters move in one step; raise if the step leaves traces on the host."""
    _warm_up(trial, work)
    traces, before = trial.traces(), [parameter.detach().clone() for parameter in trial.parameters]
    work()
    why = traces.why_not()
    found = moved(list(trial.parameters), before)
    trial.snapshot.put_back()
    if why is not None:
        raise NotReplayable(why)
    return found


def _warm_up(trial: Trial, work: Work) -> None:
    for _ in range(WARM_UP):
        work()
        trial.snapshot.put_back()


def _seconds(trial: Trial, run: Work) -> float:
    """Return a step's time, the median of three rounds from the same state. Host syncs, once per phase."""
    run()
    trial.snapshot.put_back()
    once = _round(trial, run, 1)
    most = min(MOST_REPETITIONS, trial.windows)
    count = max(1, min(most, int(MEASURED_SECONDS / 3 / max(once, 1e-6))))
    return sorted(_round(trial, run, count) for _ in range(3))[1]


def _round(trial: Trial, run: Work, count: int) -> float:
    _finish(trial)
    started = time.perf_counter()
    for _ in range(count):
        run()
    _finish(trial)
    elapsed = time.perf_counter() - started
    trial.snapshot.put_back()
    return elapsed / count


def _finish(trial: Trial) -> None:
    if trial.recorder is not None:
        trial.recorder.finish()


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{text[0][:160]}" if text else type(error).__name__


def _line(best: Mode, runs: dict[Mode, tuple[float, Work]], failed: dict[Mode, str]) -> str:
    timed = {mode: seconds for mode, (seconds, _) in runs.items() if seconds}
    parts = [f"{mode} {1000 * seconds:.3g} ms" for mode, seconds in timed.items()]
    parts += [f"{mode} not possible: {why}" for mode, why in failed.items()]
    return f"step: {best}" + (f" ({'; '.join(parts)})" if parts else "")
