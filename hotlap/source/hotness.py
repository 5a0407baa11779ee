"""How often each function runs: per epoch, per batch, per sample, per element; and how we know."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from enum import IntEnum
from functools import cached_property

from hotlap.model.scanned import Confidence, Frequency, Step
from hotlap.source import hooks
from hotlap.source.classes import Reference
from hotlap.source.containers import moved_batches
from hotlap.source.facts import ASKED, DEAD, ERROR, FIRST, FLAG, MAYBE, RARE, RECORD, Call, Function, Loop, Stack
from hotlap.source.heat import Heat, Side
from hotlap.source.modules import argument
from hotlap.source.project import Project
from hotlap.source.statements import is_static
from hotlap.source.steps import grow, is_trial, steppers
from hotlap.source.terms import BATCH, EXTENT, HOST, LOADERS, NUMBER, NUMPY, TENSOR, Term

_LONGEST = 12  # calls in a chain


class LoopKind(IntEnum):
    PLAIN = 0
    EPOCH = 1
    ELEMENT = 2
    BATCH_LIKELY = 3
    BATCH = 4


class Hotness:
    """The heat of every function of a project that is reached from a training or evaluation loop, or a hook."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.callers = self._callers()
        self.steppers = steppers(project, self.callers)
        self.kinds: dict[Reference, list[LoopKind]] = {}
        for reference, function in project.functions():
            if function.loops:
                self.kinds[reference] = [self._kind(reference, loop) for loop in function.loops]
        self._mark_stepping_loops()
        self._mark_evaluating_loops()
        self._mark_gathering_loops()
        self.loopers = self._loopers()
        self._mark_epochs()
        self.around = self._around_trainings()
        self.functions: dict[Reference, Heat] = {}
        self.streams = set(hooks.streams(project))
        self._evaluating: dict[tuple[Reference, int], bool] = {}
        self._spread()

    # Loops

    def _callers(self) -> dict[Reference, list[tuple[Reference, Call]]]:
        result: dict[Reference, list[tuple[Reference, Call]]] = {}
        for reference, function in self.project.functions():
            for call in function.calls:
                for target in self._called(call, reference.path):
                    result.setdefault(target, []).append((reference, call))
        return result

    def _called(self, call: Call, origin: str) -> Iterator[Reference]:
        """The functions run by a call, and those handed to a library that runs them there."""
        targets = self.project.targets(call.callee, origin)
        yield from targets
        for target in targets:
            yield from self._handed(call, target, origin)
        if not targets and hooks.runs_its_arguments(call.callee):
            for term in call.arguments:
                yield from self.project.targets(term, origin) if isinstance(term, tuple) else ()

    def _handed(self, call: Call, target: Reference, origin: str) -> Iterator[Reference]:
        """Functions that the called one gets and calls: `with_events(self.backward)`."""
        for number in self._called_parameters.get(target, ()):
            function = self.project.function(target)
            place = number - 1 if function.owner and not is_static(function) else number
            given = argument(call, place, function.parameters[number])
            if isinstance(given, tuple):
                yield from self.project.targets(given, origin)

    @cached_property
    def _called_parameters(self) -> dict[Reference, set[int]]:
        found: dict[Reference, set[int]] = {}
        for reference, function in self.project.functions():
            for call in function.calls:
                callee = call.callee
                if isinstance(callee, tuple) and callee[0] == "param" and callee[1] == reference.name:
                    found.setdefault(reference, set()).add(callee[2])
        return found

    def _kind(self, reference: Reference, loop: Loop) -> LoopKind:
        if loop.trains:
            return LoopKind.BATCH
        over = self._iterated(self.project.answer(loop.over, reference.path))
        if over in LOADERS:
            return LoopKind.BATCH
        if over in (TENSOR, BATCH, HOST, EXTENT, NUMPY):
            return LoopKind.ELEMENT
        if loop.comprehension or loop.weights:
            return LoopKind.PLAIN
        if self.project.is_loader(over):
            return LoopKind.BATCH
        if self.project.gives_in_turn(over) and self._calls_module(reference, loop, deep=1):
            return LoopKind.BATCH_LIKELY
        if loop.moves and (loop.feeds or self._calls_module(reference, loop)):
            return LoopKind.BATCH_LIKELY
        if loop.unpacks and (self._calls_module(reference, loop) if loop.no_grad else self._infers(reference, loop)):
            return LoopKind.BATCH_LIKELY
        return LoopKind.PLAIN

    def _iterated(self, term: Term) -> Term:
        """What is behind enumerate and zip."""
        while isinstance(term, tuple) and term[0] == "enumerated":
            term = term[1]
        if isinstance(term, tuple) and term[0] == "zipped":
            kinds = [self._iterated(part) for part in term[1:]]
            return next((kind for kind in kinds if kind in LOADERS), kinds[0] if kinds else "")
        if isinstance(term, tuple) and term[0] == "join":
            return next((part for part in term[1:] if part in LOADERS), term)
        return term

    def _calls_module(self, reference: Reference, loop: Loop, deep: int = 0) -> bool:
        if loop.models:
            return True
        function = self.project.function(reference)
        number = function.loops.index(loop)
        return any(number in call.stack and self._runs_module(call, reference.path, deep) for call in function.calls)

    def _infers(self, reference: Reference, loop: Loop) -> bool:
        """Calls a module without recording a graph, in a loop that itself says nothing of graphs."""
        function = self.project.function(reference)
        number = function.loops.index(loop)
        if loop.over == NUMBER:  # steps of a generation
            return False
        return loop.quiet or any(
            call.no_grad and number in call.stack and self._runs_module(call, reference.path, 0)
            for call in function.calls
        )

    def _runs_module(self, call: Call, origin: str, deep: int) -> bool:
        """The call runs a module, or one of the functions that it runs does."""
        if self.project.is_model(self.project.answer(call.callee, origin)):
            return True
        return deep > 0 and any(
            self._runs_module(inner, target.path, deep - 1)
            for target in self.project.targets(call.callee, origin)
            for inner in self.project.function(target).calls
        )

    def _mark_stepping_loops(self) -> None:
        for reference, function in self.project.functions():
            for call in function.calls:
                number = innermost(call.stack, function)
                if number < 0 or self.kinds[reference][number] is LoopKind.BATCH:
                    continue
                if any(target in self.steppers for target in self._called(call, reference.path)):
                    self.kinds[reference][number] = LoopKind.BATCH

    def _mark_evaluating_loops(self) -> None:
        for step in hooks.evaluation_steps(self.project):
            for reference, call in self.callers.get(step, ()):
                number = innermost(call.stack, self.project.function(reference))
                if number >= 0 and self.kinds[reference][number] is LoopKind.PLAIN:
                    self.kinds[reference][number] = LoopKind.BATCH_LIKELY

    def _mark_gathering_loops(self) -> None:
        """Around a loop over micro-batches that only gathers gradients, the loop that steps is the one over batches."""
        for reference, kinds in self.kinds.items():
            loops = self.project.function(reference).loops
            for number, loop in enumerate(loops):
                inner = [one for one in loops if one.parent == number and one.trains]
                if loop.updates and inner and not any(one.updates for one in inner):
                    kinds[number] = LoopKind.BATCH

    def _loopers(self) -> set[Reference]:
        """Functions that run a whole loop over batches, themselves or through what they call."""
        found = {one for one, kinds in self.kinds.items() if any(kind >= LoopKind.BATCH_LIKELY for kind in kinds)}
        grow(found, self.callers, in_loops=True)
        return found

    def _mark_epochs(self) -> None:
        for reference, function in self.project.functions():
            kinds = self.kinds.get(reference, [])
            for loop in function.loops:
                if loop.strided and loop.trains and loop.updates and loop.parent >= 0:
                    self._mark_pieces(kinds, function, loop.parent)
            for number, loop in enumerate(function.loops):
                if kinds[number] >= LoopKind.BATCH_LIKELY and loop.parent >= 0:
                    self._mark_epoch(kinds, function, loop.parent)
            for call in function.calls:
                number = innermost(call.stack, function)
                if number >= 0 and any(one in self.loopers for one in self._called(call, reference.path)):
                    self._mark_epoch(kinds, function, number)

    def _around_trainings(self) -> set[tuple[Reference, int]]:
        """Loops over folds, seeds or trials: around one that counts epochs, here or in what they call."""
        found: set[tuple[Reference, int]] = set()
        trainings = set()
        for reference, kinds in self.kinds.items():
            loops = self.project.function(reference).loops
            for loop, kind in zip(loops, kinds, strict=True):
                if kind is LoopKind.EPOCH and loop.epoch:
                    trainings.add(reference)
                    found |= {(reference, number) for number in _outer(loops, loop.parent)}
        grow(trainings, self.callers, in_loops=True)
        for target in trainings:
            for reference, call in self.callers.get(target, ()):
                function = self.project.function(reference)
                for number in _outer(function.loops, innermost(call.stack, function)):
                    if not function.loops[number].epoch:
                        found.add((reference, number))
        return found

    def _mark_pieces(self, kinds: list[LoopKind], function: Function, number: int) -> None:
        """A loop over long sequences, each of which is trained on piece by piece, is none over batches."""
        loop = function.loops[number]
        if not loop.trains and not loop.updates:
            kinds[number] = LoopKind.EPOCH

    def _mark_epoch(self, kinds: list[LoopKind], function: Function, number: int) -> None:
        while number >= 0:
            loop = function.loops[number]
            if kinds[number] is LoopKind.PLAIN or (kinds[number] is LoopKind.BATCH_LIKELY and not loop.trains):
                kinds[number] = LoopKind.EPOCH
            number = loop.parent

    # Functions

    def _spread(self) -> None:
        waiting: deque[Reference] = deque()
        for reference, heat in hooks.roots(self.project):
            if heat.better_than(self.functions.get(reference)):
                self.functions[reference] = heat
        waiting.extend(reference for reference, _ in self.project.functions())
        self._reach(waiting)
        for reference, heat in (*self._unreached_steps(), *moved_batches(self.project, self.functions)):
            self.functions[reference] = heat
            waiting.append(reference)
        self._reach(waiting)

    def _reach(self, waiting: deque[Reference]) -> None:
        while waiting:
            reference = waiting.popleft()
            for target, heat in self._reached(reference):
                if heat.better_than(self.functions.get(target)):
                    self.functions[target] = heat
                    waiting.append(target)

    def _unreached_steps(self) -> Iterator[tuple[Reference, Heat]]:
        """A function that makes one backward pass and one step of an optimizer is a training step by itself, where
        only a framework, a registry or a loop of another project knows who calls it."""
        for reference, function in self.project.functions():
            known = self.functions.get(reference)
            if not (function.steps and function.updates and function.parameters) or (known is not None and known.hot):
                continue
            if reference in self.steppers and not is_trial(reference):
                text = f"{function.name.rsplit('.', 1)[-1]} makes a training step"
                step = Step(reference.path, function.line, text)
                yield reference, Heat(Frequency.BATCH, Confidence.MEDIUM, Side.TRAIN, (step,))

    @cached_property
    def trains(self) -> bool:
        """Some loop makes a backward pass, or a framework is handed a step to train with."""
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
            one.path for one, kinds in self.kinds.items() if any(kind >= LoopKind.BATCH_LIKELY for kind in kinds)
        }

    def is_hot(self, path: str) -> bool:
        """Some of the file runs every batch."""
        return path in self._hot_files

    def _reached(self, reference: Reference) -> Iterator[tuple[Reference, Heat]]:
        function = self.project.function(reference)
        for call in function.calls:
            heat = self.at(reference, call.stack)
            if heat is None or heat.frequency is Frequency.NEVER or len(heat.why) > _LONGEST:
                continue
            for target in self._called(call, reference.path):
                if target != reference:
                    step = Step(reference.path, call.line, f"calls {target.name.rsplit('.', 1)[-1]}")
                    yield target, heat._replace(why=(*heat.why, step))

    def at(self, reference: Reference, stack: Stack) -> Heat | None:
        """How hot a place in a function is; None where nothing is known of how it is reached."""
        heat = self.functions.get(reference)
        function = self.project.function(reference)
        for frame in stack:
            if frame >= 0:
                heat = self._in_loop(heat, reference, function, frame)
            else:
                heat = self._under_guard(heat, frame if frame > ASKED else self._told(reference, function, frame))
        return heat

    def _told(self, reference: Reference, function: Function, guard: int) -> int:
        """What the project knows of a condition."""
        term, otherwise = function.asked[ASKED - guard]
        return RARE if self.project.is_rare(term, reference.path) else otherwise

    def _in_loop(self, heat: Heat | None, reference: Reference, function: Function, number: int) -> Heat | None:
        if number >= len(function.loops):  # another function of the same name, defined before this one
            return heat
        kind, loop = self.kinds[reference][number], function.loops[number]
        if kind >= LoopKind.BATCH_LIKELY:
            return self._in_batch_loop(heat, reference, loop, kind)
        if heat is not None and heat.frequency is Frequency.EPOCH and self._evaluates(reference, number):
            return self._in_batch_loop(heat, reference, loop, LoopKind.BATCH_LIKELY)
        if loop.yields and reference in self.streams:
            step = Step(reference.path, loop.line, "gives the samples of a stream")
            return Heat(Frequency.SAMPLE, Confidence.HIGH, Side.LOAD, (step,))
        if kind is LoopKind.EPOCH:
            return self._in_epochs(heat, Step(reference.path, loop.line, ""), (reference, number) in self.around)
        if kind is LoopKind.ELEMENT and heat is not None and heat.hot:
            step = Step(reference.path, loop.line, "loop over the elements of a tensor")
            return heat._replace(frequency=Frequency.ELEMENT, why=(*heat.why, step))
        return heat

    def _in_epochs(self, heat: Heat | None, step: Step, around: bool) -> Heat:
        """In a loop over epochs, or over whole trainings: what runs once in one of those is not of every epoch."""
        if heat is not None and heat.frequency.rank >= Frequency.EPOCH.rank and not (heat.rarely and not around):
            return heat
        step = replace(step, text="loop around a training" if around else "epoch loop")
        before = heat.why if heat is not None and heat.frequency is Frequency.EPOCH else ()
        return Heat(Frequency.EPOCH, Confidence.HIGH, Side.TRAIN, (*before, step), rarely=around)

    def _evaluates(self, reference: Reference, number: int) -> bool:
        """A loop through a model, once an epoch, whatever it iterates over: files, indices, clips."""
        key = (reference, number)
        if key not in self._evaluating:
            loop = self.project.function(reference).loops[number]
            plain = self.kinds[reference][number] is LoopKind.PLAIN and not loop.comprehension
            self._evaluating[key] = plain and loop.no_grad and self._calls_module(reference, loop)
        return self._evaluating[key]

    def _in_batch_loop(self, heat: Heat | None, reference: Reference, loop: Loop, kind: LoopKind) -> Heat:
        if kind is LoopKind.BATCH_LIKELY and heat is not None and heat.hot and heat.side is Side.TRAIN:
            return heat  # over parts of a batch, within a training step
        trains = loop.trains or (not loop.no_grad and self._trains_within(reference, loop))
        text = "training loop" if trains else "evaluation loop" if loop.no_grad else "loop over batches"
        side = heat.side if heat is not None and heat.side is Side.LOAD else Side.TRAIN if trains else Side.EVALUATE
        confidence = Confidence.HIGH if kind is LoopKind.BATCH else Confidence.MEDIUM
        if loop.epoch:  # an epoch of one batch: nobody reads its loss more rarely than that
            confidence = Confidence.LOW
        before = heat.why if heat is not None and heat.frequency is Frequency.EPOCH else ()
        return Heat(Frequency.BATCH, confidence, side, (*before, Step(reference.path, loop.line, text)))

    def _trains_within(self, reference: Reference, loop: Loop) -> bool:
        """A backward pass in a loop within, or in something that it calls."""
        function = self.project.function(reference)
        number = function.loops.index(loop)
        if any(one.trains and one.parent == number for one in function.loops):
            return True
        return any(
            number in call.stack and any(one in self.steppers for one in self._called(call, reference.path))
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
            return heat._replace(confidence=Confidence.LOW)
        often = heat.frequency.rank > Frequency.RARE.rank
        if guard == RECORD:
            return heat._replace(frequency=Frequency.RARE) if often else heat._replace(maybes=heat.maybes + 1)
        if guard in (RARE, FIRST, ERROR):
            return heat._replace(frequency=Frequency.RARE) if often else heat._replace(rarely=True)
        return heat


def innermost(stack: Stack, function: Function) -> int:
    for frame in reversed(stack):
        if frame >= 0 and not function.loops[frame].comprehension:
            return frame
    return -1


def _outer(loops: list[Loop], number: int) -> Iterator[int]:
    """A loop and those around it."""
    while number >= 0:
        yield number
        number = loops[number].parent
