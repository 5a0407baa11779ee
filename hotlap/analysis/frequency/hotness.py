"""Works out how often each function runs (per epoch, per batch, per sample, per element), and on what evidence."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property

from hotlap.analysis.frequency import hooks
from hotlap.analysis.frequency.argument_counts import counts_turns
from hotlap.analysis.frequency.containers import GIVING, deep_movers, feeders, moved_batches
from hotlap.analysis.frequency.heat import Heat, Side
from hotlap.analysis.frequency.loops import LoopKind, Loops
from hotlap.analysis.frequency.losses import by_kind
from hotlap.analysis.frequency.modes import under_no_grad
from hotlap.analysis.frequency.single_evaluations import is_made_once, is_tested
from hotlap.analysis.frequency.steps import grow, is_trial
from hotlap.analysis.names.classes import Reference
from hotlap.analysis.names.modules import argument
from hotlap.analysis.names.project import Project
from hotlap.analysis.parse.facts import (
    CONDITIONAL,
    DEAD,
    EPOCHLY,
    ERROR,
    FIRST,
    FLAG,
    MAYBE,
    RARE,
    RECORD,
    TURN,
    Call,
    Function,
    Loop,
    Stack,
)
from hotlap.analysis.parse.statements import is_static
from hotlap.analysis.parse.terms import NUMBER
from hotlap.records.scan_finding import Confidence, Frequency, Step

_LONGEST = 12  # calls in a chain
_BETWEEN = (Frequency.EPOCH, Frequency.RARE)  # how often a training evaluates

__all__ = ["Hotness", "LoopKind"]


class Hotness(Loops):
    """The heat of every function of a project that is reached from a training loop, an evaluation loop or a hook."""

    def __init__(self, project: Project) -> None:
        super().__init__(project)
        self.functions: dict[Reference, Heat] = {}
        self.streams = set(hooks.streams(project))
        self._evaluating: dict[tuple[Reference, int], bool] = {}
        self.fed: dict[Reference, Heat] = {}  # generators, with the heat of the loops over batches that consume them
        self._flags: dict[tuple[Reference, str], set[bool | None]] = {}  # the values that frequent callers pass
        self._once: dict[Reference, bool] = {}
        self._settled = False  # whether all frequencies are known
        self._spread()
        self._settled = True

    def _spread(self) -> None:
        waiting: deque[Reference] = deque()
        sent = hooks.sent(self.project)
        called = {}
        for reference, heat in hooks.roots(self.project):
            if reference in sent:
                called[reference] = heat
            elif heat.better_than(self.functions.get(reference)):
                self.functions[reference] = heat
        waiting.extend(reference for reference, _ in self.project.functions())
        self._reach(waiting)
        for reference, heat in called.items():
            self.functions[reference] = self._sent_at(reference, sent[reference], heat)
            waiting.append(reference)
        self._reach(waiting)
        unreached = dict(self._unreached_steps())
        for reference, heat in (
            *unreached.items(),
            *self._siblings(unreached),
            *moved_batches(self.project, self.functions),
            *(deep_movers(self.project, self.functions) if self.steppers else ()),
            *by_kind(self.project, self.functions.keys() | self.callers.keys()),
        ):
            self.functions[reference] = heat
            waiting.append(reference)
        self._reach(waiting)

    def _sent_at(self, reference: Reference, sites: list[tuple[Reference, Call]], by_name: Heat) -> Heat:
        """Return the heat of a callback of the project's own, which runs as often as the project sends its event."""
        best = self.functions.get(reference)
        for where, call in sites:
            heat = self.at(where, call.stack)
            if heat is not None and heat.better_than(best):
                best = heat._replace(why=(*heat.why, Step(where.path, call.line, f"sends {reference.name}")))
        return best or by_name

    def _reach(self, waiting: deque[Reference]) -> None:
        while waiting:
            reference = waiting.popleft()
            waiting.extend(self._feeding(reference))
            for target, heat in self._reached(reference):
                if heat.better_than(self.functions.get(target)):
                    self.functions[target] = heat
                    waiting.append(target)

    def _unreached_steps(self) -> Iterator[tuple[Reference, Heat]]:
        """Yield functions that are a training step by themselves: they make one backward pass and one optimizer step,
        and their callers are unknown, such as a framework, a registry or another project."""
        for reference, function in self.project.functions():
            known = self.functions.get(reference)
            if not function.parameters or (known is not None and known.hot) or reference not in self.steppers:
                continue
            if reference.name.endswith(".__init__"):
                continue  # tries out its model, or is a whole training
            if known is not None and known.frequency is Frequency.EPOCH and self.callers.get(reference):
                continue  # a step of its own kind at the end of every epoch
            if ((function.steps and function.updates) or self._is_begun(reference)) and not is_trial(reference):
                text = f"{function.name.rsplit('.', 1)[-1]} makes a training step"
                step = Step(reference.path, function.line, text)
                yield reference, Heat(Frequency.BATCH, Confidence.MEDIUM, Side.TRAIN, (step,))

    def _siblings(self, steps: Mapping[Reference, Heat]) -> Iterator[tuple[Reference, Heat]]:
        """Yield evaluation steps such as `Validation.__call__` beside `Training.__call__`, both of one base."""
        for reference, heat in steps.items():
            owner, _, method = reference.name.rpartition(".")
            known = self.project.files[reference.path].classes.get(owner)
            for sibling in self.project.siblings(reference.path, known, method) if known is not None else ():
                reached = self.functions.get(sibling)
                if sibling not in self.steppers and (reached is None or not reached.hot):
                    step = Step(
                        sibling.path, self.project.function(sibling).line, f"beside {reference.name}, which trains"
                    )
                    yield sibling, heat._replace(side=Side.EVALUATE, why=(step,))

    def _is_begun(self, reference: Reference) -> bool:
        """Match methods that make a step through other methods and that nobody in the project calls. Examples are
        `agent.observe(transition)`, and `model.optimize_parameters()`, which steps the optimizer and leaves the
        backward pass to another method."""
        function = self.project.function(reference)
        given = len(function.parameters) > 1 or (function.updates and not function.loops)
        return bool(function.owner) and given and not self.callers.get(reference)

    @cached_property
    def trains(self) -> bool:
        """Whether some loop makes a backward pass, or a framework gets a step to train with."""
        if any(loop.trains for _, function in self.project.functions() for loop in function.loops) or self.steppers:
            return True
        return any(
            heat.side is Side.TRAIN and heat.hot and not reference.name.endswith(".forward")
            for reference, heat in self.functions.items()
        )

    @cached_property
    def _hot_files(self) -> set[str]:
        hot = {reference.path for reference, heat in self.functions.items() if heat.hot}
        return hot | {
            reference.path
            for reference in self.kinds
            if reference.path not in hot and self.goes_over_batches(reference)
        }

    def is_hot(self, path: str) -> bool:
        """Return whether any code of the file runs every batch."""
        return path in self._hot_files

    def _feeding(self, reference: Reference) -> Iterator[Reference]:
        """Yield the generators that a loop over batches consumes; their work for one batch is as hot as the loop."""
        function = self.project.function(reference)
        for number, kind in enumerate(self.kinds.get(reference, ())):
            loop = function.loops[number]
            if kind < LoopKind.BATCH_LIKELY or loop.comprehension:
                continue
            heat = self.at(reference, (number,))
            for target in feeders(self.project, loop.over, reference.path) if heat is not None and heat.hot else ():
                if target != reference and target not in self.fed:
                    assert heat is not None
                    self.fed[target] = heat = heat._replace(confidence=Confidence.MEDIUM)
                    if not self.project.function(target).generates:  # __next__ is called for every batch
                        step = Step(target.path, self.project.function(target).line, GIVING)
                        self.functions[target] = heat._replace(side=Side.LOAD, why=(*heat.why, step))
                    yield target

    def _reached(self, reference: Reference) -> Iterator[tuple[Reference, Heat]]:
        function = self.project.function(reference)
        for call in function.calls:
            heat = self.at(reference, call.stack)
            if heat is None or heat.frequency is Frequency.NEVER or len(heat.why) > _LONGEST:
                continue
            every = list(self._called(call, reference.path))
            either = heat.side is Side.TRAIN and len(every) > 1 and any(called in self.steppers for called in every)
            for target in every:
                if target != reference:
                    step = Step(reference.path, call.line, f"calls {target.name.rsplit('.', 1)[-1]}")
                    apart = either and target not in self.steppers and self.project.function(target).evaluates
                    side = Side.EVALUATE if apart else heat.side  # an engine that gets either step
                    yield target, heat._replace(side=side, why=(*heat.why, step))

    def at(self, reference: Reference, stack: Stack) -> Heat | None:
        """Return how hot a place in a function is, or None if nothing is known about how it is reached."""
        heat = self.functions.get(reference)
        function = self.project.function(reference)
        around = heat
        for frame in stack:
            if frame >= 0:
                around, heat = heat, self._in_loop(heat, reference, function, frame)
            elif frame == TURN:
                heat = around if around is not None and around.hot else self._under_guard(heat, FIRST)
            else:
                heat = self._under_guard(
                    heat, frame if frame > CONDITIONAL else self._resolved(reference, function, frame)
                )
        return heat

    def _resolved(self, reference: Reference, function: Function, guard: int) -> int:
        """Return the guard that stands for a condition, given what the project knows about it."""
        term, otherwise = function.conditions[CONDITIONAL - guard]
        if isinstance(term, tuple) and term[0] == "counted":
            return FIRST if self._settled and counts_turns(self.callers, reference, function, term[1]) else otherwise
        if isinstance(term, tuple) and term[0] == "flag":
            return RARE if self._settled and self._is_never(reference, function, term[1], term[2]) else otherwise
        return RARE if self.project.is_rare(term, reference.path) else otherwise

    def _is_never(self, reference: Reference, function: Function, name: str, wanted: bool) -> bool:
        """Return whether all callers that run often enough leave the flag at the opposite of the wanted value."""
        if (reference, name) not in self._flags:
            self._flags[reference, name] = set()  # unknown while it is being worked out
            self._flags[reference, name] = self._values(reference, function, name)
        return self._flags[reference, name] == {not wanted}

    def _values(self, reference: Reference, function: Function, name: str) -> set[bool | None]:
        heat = self.functions.get(reference)
        if name not in function.parameters:  # of another function of the same name, defined before or after this one
            return {None}
        shift = 1 if function.owner and not is_static(function) else 0
        number = function.parameters.index(name) - shift
        found: set[bool | None] = set()
        for where, call in self.callers.get(reference, ()) if heat is not None else ():
            around = self.at(where, call.stack)
            if heat is not None and around is not None and around.frequency.rank >= heat.frequency.rank:
                flags, given = dict(call.flags), argument(call, number, name)
                value = flags.get(name, flags.get(number))
                default = None if "*" in flags else dict(function.flags).get(name)
                found.add(default if given is None else value)
        return found

    def _in_loop(self, heat: Heat | None, reference: Reference, function: Function, number: int) -> Heat | None:
        if number >= len(function.loops):  # another function of the same name, defined before this one
            return heat
        kind, loop = self.kinds[reference][number], function.loops[number]
        if kind >= LoopKind.BATCH_LIKELY:
            return self._in_batch_loop(heat, reference, loop, kind)
        if heat is not None and heat.frequency in _BETWEEN and self._evaluates(reference, number, heat.frequency):
            return self._in_batch_loop(heat, reference, loop, LoopKind.BATCH_LIKELY)
        if loop.yields and reference in self.streams:
            step = Step(reference.path, loop.line, "yields the samples of a stream")
            return Heat(Frequency.SAMPLE, Confidence.HIGH, Side.LOAD, (step,))
        if loop.yields and reference in self.fed:
            step = Step(reference.path, loop.line, GIVING)
            return self.fed[reference]._replace(side=Side.LOAD, why=(*self.fed[reference].why, step))
        if kind is LoopKind.EPOCH:
            found = self._in_epochs(heat, Step(reference.path, loop.line, ""), (reference, number) in self.around)
            apart = heat is None or heat.alone
            return found._replace(alone=True) if apart and not self._learns(reference, number) else found
        if kind is LoopKind.ELEMENT and heat is not None and heat.hot:
            step = Step(reference.path, loop.line, "loop over the elements of a tensor")
            return heat._replace(frequency=Frequency.ELEMENT, why=(*heat.why, step))
        return heat

    def _in_epochs(self, heat: Heat | None, step: Step, around: bool) -> Heat:
        """Return the heat in a loop over epochs or whole trainings. Code that runs once per training is not in every
        epoch."""
        if heat is not None and heat.frequency.rank >= Frequency.EPOCH.rank and not (heat.rarely and not around):
            return heat
        step = replace(step, text="loop around a training" if around else "epoch loop")
        before = heat.why if heat is not None and heat.frequency is Frequency.EPOCH else ()
        return Heat(Frequency.EPOCH, Confidence.HIGH, Side.TRAIN, (*before, step), rarely=around, around=around)

    def _evaluates(self, reference: Reference, number: int, frequency: Frequency) -> bool:
        """Return whether a loop evaluates. Either it runs a model once an epoch, whatever it iterates over (files,
        indices, clips), or it passes each element to a function that evaluates, once an epoch or every N batches."""
        key = (reference, number)
        if key not in self._evaluating:
            loop = self.project.function(reference).loops[number]
            plain = self.kinds[reference][number] is LoopKind.PLAIN and not (loop.comprehension or loop.weights)
            if not plain:
                self._evaluating[key] = False
                return False
            called = bool(self.callers.get(reference))  # a hook of a framework is more than its model
            quiet = loop.no_grad or (called and under_no_grad(self.project, self.callers, reference))
            runs = self._calls_module(reference, loop, deep=1)
            steps = loop.unpacks and (
                (runs and self._looks(reference, loop)) or self._evaluates_in_turns(reference, loop)
            )
            counted = loop.no_grad and loop.batches and loop.parent < 0
            self._evaluating[key] = (frequency is Frequency.EPOCH and ((quiet and runs) or counted)) or steps
        return self._evaluating[key]

    def _looks(self, reference: Reference, loop: Loop) -> bool:
        """Match a loop over anything but numbers, in a function that puts its model in evaluation mode."""
        return self.project.function(reference).evaluates and loop.over != NUMBER and self._only_looks(reference, loop)

    def goes_over_batches(self, reference: Reference) -> bool:
        """Return whether a function has a loop over batches, by its iterable or by what it does once an epoch."""
        heat = self.functions.get(reference)
        between = heat is not None and heat.frequency in _BETWEEN
        return any(
            kind >= LoopKind.BATCH_LIKELY
            or (between and heat is not None and self._evaluates(reference, number, heat.frequency))
            for number, kind in enumerate(self.kinds.get(reference, ()))
        )

    def _in_batch_loop(self, heat: Heat | None, reference: Reference, loop: Loop, kind: LoopKind) -> Heat:
        evaluates = self.project.function(reference).evaluates and (loop.no_grad or self._only_looks(reference, loop))
        within = kind is LoopKind.BATCH_LIKELY and heat is not None and heat.hot and heat.side is Side.TRAIN
        if within and not evaluates:
            assert heat is not None
            return heat  # over parts of a batch, within a training step
        trains = loop.trains or (not loop.no_grad and self._trains_within(reference, loop))
        text = "training loop" if trains else "evaluation loop" if loop.no_grad else "loop over batches"
        side = heat.side if heat is not None and heat.side is Side.LOAD else Side.TRAIN if trains else Side.EVALUATE
        confidence = Confidence.HIGH if kind is LoopKind.BATCH else Confidence.MEDIUM
        inner = heat is not None and heat.hot and heat.side is not Side.LOAD
        whole = loop.epoch and not inner  # an epoch of one batch: logging cannot be rarer
        confidence = Confidence.LOW if whole else confidence
        apart = heat is None or (heat.alone and not heat.hot)
        alone = apart and side is Side.EVALUATE and self._is_made_once(reference)
        tested = is_tested(self.project.files[reference.path])
        confidence = Confidence.LOW if alone or tested else confidence
        before = heat.why if heat is not None and heat.frequency is Frequency.EPOCH else ()
        why = (*before, Step(reference.path, loop.line, text))
        return Heat(Frequency.BATCH, confidence, side, why, alone=alone, whole=whole and not (alone or tested))

    def _only_looks(self, reference: Reference, loop: Loop) -> bool:
        """Match a loop without a backward pass, in a function that makes none either."""
        return not loop.trains and reference not in self.learning

    def _learns(self, reference: Reference, number: int) -> bool:
        """Match a loop that counts epochs or in which something trains, unlike `for text in texts: predict(text)`."""
        function = self.project.function(reference)
        if function.loops[number].epoch:
            return True
        inner = {number}
        for nested, loop in enumerate(function.loops):
            if loop.parent in inner:
                inner.add(nested)
        if any(function.loops[frame].trains for frame in inner):
            return True
        return any(
            not inner.isdisjoint(call.stack)
            and any(called in self.learning for called in self._called(call, reference.path))
            for call in function.calls
        )

    @cached_property
    def learning(self) -> set[Reference]:
        """The functions that make a backward pass, themselves or through what they call."""
        found = {
            reference
            for reference, function in self.project.functions()
            if function.steps or function.updates or any(loop.trains for loop in function.loops)
        }
        grow(found, self.callers, in_loops=True)
        return found

    def _is_made_once(self, reference: Reference) -> bool:
        """Match an evaluation made once beside a training. Without a training, evaluating is the program's purpose."""
        if reference not in self._once:
            self._once[reference] = self.trains and is_made_once(self, reference)
        return self._once[reference]

    def _trains_within(self, reference: Reference, loop: Loop) -> bool:
        """Return whether a nested loop, or something that the loop calls, makes a backward pass."""
        function = self.project.function(reference)
        number = function.loops.index(loop)
        if any(inner.trains and inner.parent == number for inner in function.loops):
            return True
        return any(
            number in call.stack and any(called in self.steppers for called in self._called(call, reference.path))
            for call in function.calls
        )

    def _under_guard(self, heat: Heat | None, guard: int) -> Heat | None:
        if guard == DEAD:
            return Heat(Frequency.NEVER, Confidence.HIGH, Side.TRAIN)
        if heat is None:
            return None
        if guard == MAYBE:
            return heat._replace(maybes=heat.maybes + 1)
        if guard == FLAG:
            return heat._replace(confidence=Confidence.LOW, whole=False)
        often = heat.frequency.rank > Frequency.RARE.rank
        if guard == RECORD:
            return heat._replace(frequency=Frequency.RARE) if often else heat._replace(maybes=heat.maybes + 2)
        if guard == EPOCHLY and heat.hot:
            return heat._replace(frequency=Frequency.EPOCH)
        if guard in (RARE, FIRST, ERROR, EPOCHLY):
            return heat._replace(frequency=Frequency.RARE) if often else heat._replace(rarely=True)
        return heat
