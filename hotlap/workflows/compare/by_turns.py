"""Runs two commands, or two revisions, alternately in fresh processes until a slowdown is proven or ruled out."""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hotlap import store
from hotlap.errors import INTERRUPTED, BaselineUnusable, BudgetTooSmall, HotlapError, NoStep, TooShort
from hotlap.process.launch import resolve
from hotlap.records.comparison import Comparison, Kind, Result, Side
from hotlap.records.observation import Observation
from hotlap.records.trial import EndReason, Sample
from hotlap.records.verdict import Speed
from hotlap.trial.keeper import Keeper, folders_at_stake
from hotlap.trial.local import EARLY, LocalRunner
from hotlap.trial.order import SCRATCH
from hotlap.trial.runner import BASE, NEW, Runner, Spec
from hotlap.workflows import profile as profiling
from hotlap.workflows.compare import worktrees
from hotlap.workflows.compare.speeds import Options, comparison_of, judge, trial_of

LOOKS = (3, 5, 8)  # processes per arm after which to judge; every further look is another chance to be wrong
MEASURED_SECONDS = 5.0  # of steps per process
FEWEST_STEPS, MOST_STEPS = 40, 2000
BROKEN = 2  # failures after which an arm counts as broken

OnWord = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """One side that can be run: its folder and its environment variables."""

    side: Side
    folder: Path
    variables: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Means:
    """How an arm is first observed once, and then run repeatedly."""

    look: Callable[[Arm], tuple[Observation, str]]  # also returns the id of the saved run
    runner: Callable[[Arm, Observation], Runner]


def compare_arms(
    arms: tuple[Arm, Arm], kind: Kind, options: Options, say: OnWord, means: Means | None = None
) -> Comparison:
    started = time.time()
    for arm in arms:
        with standing_in(arm):
            resolve(arm.side.command)
    run = store.create(arms[0].side.command, _root(options))
    try:
        comparison = _Turns(arms, kind, options, say, means or local_means(run, options, say), started).compare(run)
    finally:
        _tidy(run)
    run.save("comparison", comparison)
    return comparison


def _root(options: Options) -> Path:
    """Return the absolute folder of runs, because each arm runs in a folder of its own."""
    return (options.run_dir or store.home()).resolve()


def compare_revisions(
    revisions: tuple[str, str], command: tuple[str, ...], links: Sequence[Path], options: Options, say: OnWord
) -> Comparison:
    """Compare the same command on two revisions of the repository around the current folder."""
    top, at = worktrees.top(), store.prepare(_root(options), "worktrees") / str(os.getpid())
    try:
        with worktrees.checked_out(revisions, at, links) as checkouts:
            arms = [
                Arm(
                    side=Side(name=checkout.revision, command=command, revision=checkout.commit),
                    folder=checkout.folder,
                    variables=checkout.variables(top, os.environ),
                )
                for checkout in checkouts
            ]
            return compare_arms((arms[0], arms[1]), Kind.REVISIONS, options, say)
    finally:
        shutil.rmtree(at, ignore_errors=True)
        with suppress(OSError):  # another comparison is under way
            at.parent.rmdir()


def local_means(run: store.Run, options: Options, say: OnWord) -> Means:
    keepers: dict[Path, Keeper] = {}

    def keeper_of(arm: Arm) -> Keeper:
        """Return the keeper of the arm's files; it watches from the arm's first process on."""
        if arm.folder not in keepers:
            with standing_in(arm):
                folders = folders_at_stake(arm.side.command)
                copies = run.folder / "files" / str(len(keepers))
                keepers[arm.folder] = Keeper(
                    copies, folders, say, (run.folder.parent, run.folder.parent.parent / "plans")
                )
        return keepers[arm.folder]

    def look(arm: Arm) -> tuple[Observation, str]:
        request = profiling.ProfileOptions(
            command=arm.side.command,
            steps=options.steps,
            max_seconds=min(300.0, options.budget_seconds),
            run_dir=_root(options),
            early=EARLY,
            quiet=True,
        )
        keeper = keeper_of(arm)
        keeper.process_begins()
        with standing_in(arm):
            done = profiling.profile(request, lambda stage, progress, elapsed: None)
        keeper.process_ended(done.run.folder / "observing", done.run.folder / "observing" / SCRATCH)
        if done.observation.ended == "interrupted":
            raise KeyboardInterrupt
        if done.observation.ended == "program failed":
            raise NoStep(f"it failed with exit code {done.exit_code}")
        return done.observation, done.run.id

    def runner(arm: Arm, seen: Observation) -> Runner:
        return LocalRunner(
            arm.side.command, run.folder / "processes", seen.samples_per_step or 1.0, keeper=keeper_of(arm)
        )

    return Means(look=look, runner=runner)


@contextmanager
def standing_in(arm: Arm) -> Iterator[None]:
    """Enter the arm's folder and environment, and restore the previous ones afterwards."""
    here, before = Path.cwd(), dict(os.environ)
    os.chdir(arm.folder)
    os.environ.update(arm.variables)
    try:
        yield
    finally:
        os.chdir(here)
        os.environ.clear()
        os.environ.update(before)


def _tidy(run: store.Run) -> None:
    """Remove the folders of finished processes and the copies of files."""
    for copies in (run.folder / "files").glob("*/copies"):
        shutil.rmtree(copies, ignore_errors=True)
    folder = run.folder / "processes"
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


class _Turns:
    """Runs both arms alternately, A B B A, until the result is clear or time is up."""

    def __init__(
        self, arms: tuple[Arm, Arm], kind: Kind, options: Options, say: OnWord, means: Means, started: float
    ) -> None:
        self._arms, self._kind, self._options, self._say, self._means = arms, kind, options, say, means
        self._started = started
        self._samples: list[Sample] = []
        self._sides = [arm.side for arm in arms]
        self._machine = ""

    def compare(self, run: store.Run) -> Comparison:
        broken = self._look()
        if broken is not None:
            return self._comparison(run, broken)
        for i, processes in enumerate(LOOKS):
            before = LOOKS[i - 1] if i else 0
            if i and not self._affordable(processes - before):
                break
            broken = self._take_turns(before, processes)
            if broken is not None:
                return self._comparison(run, broken)
            if self._judged()[0] is not Result.INCONCLUSIVE:
                break
        return self._comparison(run, None)

    def _look(self) -> str | None:
        """Observe each side once for its batch size and step time; return why the new one does not train, if so."""
        self._runners: list[Runner] = []
        self._seen: list[Observation] = []
        for i, arm in enumerate(self._arms):
            self._say(f"looking at {arm.side.name}")
            try:
                seen, profile = self._means.look(arm)
            except NoStep as error:
                if i == 0:
                    raise BaselineUnusable(f"{arm.side.name} does not train: {error}") from error
                return str(error)
            except HotlapError as error:
                # The command's own exit code, which an error may carry, would be read as a result of hotlap.
                error.exit_code = error.exit_code if error.exit_code == INTERRUPTED else type(error).exit_code
                raise
            self._seen.append(seen)
            self._runners.append(self._means.runner(arm, seen))
            self._sides[i] = replace(arm.side, profile=profile, samples_per_step=seen.samples_per_step)
            self._machine = self._machine or seen.machine.summary
        return None

    def _take_turns(self, before: int, processes: int) -> str | None:
        for turn in range(before, processes):
            for which in (0, 1) if turn % 2 == 0 else (1, 0):
                self._say(f"{self._arms[which].side.name}, process {turn + 1} of {processes}")
                sample = self._sample(which)
                self._samples.append(sample)
                broken = self._broken(which, sample)
                if broken is not None:
                    return broken
            if turn == 0 and not self._affordable(processes - 1):
                raise BudgetTooSmall(self._too_small())
        return None

    def _sample(self, which: int) -> Sample:
        seen = self._seen[which]
        steps = self._options.steps or _enough_steps(seen)
        spec = Spec(
            number=len(self._samples),
            arm=(BASE, NEW)[which],
            choices=(),
            seed_shift=0,
            steps=steps + seen.warmup.steps,
            least=seen.warmup.steps + min(steps, FEWEST_STEPS) // 4,
            seconds=120.0 + 5 * (seen.warmup.seconds + steps * seen.mean_step_ms / 1000),
        )
        with standing_in(self._arms[which]):
            return self._runners[which].run(spec)

    def _broken(self, which: int, sample: Sample) -> str | None:
        """Return why the new arm does not train, once that is certain; raise if the baseline does not."""
        if sample.ended == EndReason.MEASURED:
            return None
        arm = (BASE, NEW)[which]
        failed = sum(other.arm == arm and other.ended != EndReason.MEASURED for other in self._samples)
        why = f"{sample.ended}: {sample.why}" if sample.why else sample.ended
        name = self._arms[which].side.name
        if sample.ended == EndReason.TOO_SHORT:
            raise TooShort(f"{name} is too short to measure: {sample.why}; let it train longer")
        if failed < BROKEN:
            return None
        if which == 0:
            raise BaselineUnusable(f"{name} does not train to the end: {why}")
        return why

    def _affordable(self, pairs: int) -> bool:
        return time.time() - self._started + pairs * self._pair_seconds() <= self._options.budget_seconds

    def _pair_seconds(self) -> float:
        return 2 * sum(sample.seconds for sample in self._samples) / max(1, len(self._samples))

    def _too_small(self) -> str:
        needed = time.time() - self._started + (LOOKS[0] - 1) * self._pair_seconds()
        minutes = math.ceil(needed / 60)
        return f"{LOOKS[0]} processes of each take about {needed:.0f} s; give more time: --budget {minutes}m"

    def _judged(self) -> tuple[Result, str, Speed | None]:
        return judge(trial_of(self._samples), self._options.max_slowdown, (self._sides[0].name, self._sides[1].name))

    def _comparison(self, run: store.Run, broken: str | None) -> Comparison:
        sides = (self._sides[0], self._sides[1])
        comparison = comparison_of(run, self._kind, sides, trial_of(self._samples), self._options, self._started)
        comparison = replace(comparison, machine=self._machine)
        if broken is None:
            return comparison
        why = f"{sides[1].name} does not train, and {sides[0].name} does: {broken}"
        return replace(comparison, result=Result.REGRESSION, why=why)


def _enough_steps(seen: Observation) -> int:
    step = seen.mean_step_ms / 1000
    wanted = math.ceil(MEASURED_SECONDS / step) if step > 0 else FEWEST_STEPS
    return min(max(wanted, FEWEST_STEPS), MOST_STEPS)
