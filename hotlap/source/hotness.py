"""How often each function runs: per epoch, per batch, per sample, per element; and how we know."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import IntEnum
from functools import cached_property

from hotlap.model.scanned import Confidence, Frequency, Step
from hotlap.source import hooks
from hotlap.source.classes import Reference
from hotlap.source.facts import DEAD, ERROR, FIRST, FLAG, MAYBE, RARE, Call, Function, Loop, Stack
from hotlap.source.heat import Heat, Side
from hotlap.source.project import Project
from hotlap.source.terms import BATCH, EXTENT, HOST, LOADERS, MODULE, NUMPY, TENSOR, Term

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
        self.steppers = self._steppers()
        self.kinds: dict[Reference, list[LoopKind]] = {}
        for reference, function in project.functions():
            if function.loops:
                self.kinds[reference] = [self._kind(reference, loop) for loop in function.loops]
        self._mark_stepping_loops()
        self._mark_gathering_loops()
        self.loopers = self._loopers()
        self._mark_epochs()
        self.functions: dict[Reference, Heat] = {}
        self._evaluating: dict[tuple[Reference, int], bool] = {}
        self._spread()

    # Loops

    def _steppers(self) -> set[Reference]:
        """Functions that make a backward pass in no loop of their own: whoever calls one in a loop is training."""
        callers = self.callers
        found = {one for one, function in self.project.functions() if function.steps and not function.builds}
        self._grow(found, callers, in_loops=False)
        looping = {
            reference for reference, function in self.project.functions() if any(loop.trains for loop in function.loops)
        }
        for stepper in found:
            looping |= {
                reference for reference, call in callers.get(stepper, ()) if any(one >= 0 for one in call.stack)
            }
        self._grow(looping, callers, in_loops=True)
        return found - looping

    def _grow(
        self, found: set[Reference], callers: dict[Reference, list[tuple[Reference, Call]]], in_loops: bool
    ) -> None:
        """Add who calls one of them; calls in a loop count only if asked for."""
        waiting = deque(found)
        while waiting:
            for reference, call in callers.get(waiting.popleft(), ()):
                if reference not in found and (in_loops or not any(frame >= 0 for frame in call.stack)):
                    found.add(reference)
                    waiting.append(reference)

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
        if not targets and hooks.runs_its_arguments(call.callee):
            for term in call.arguments:
                yield from self.project.targets(term, origin) if isinstance(term, tuple) else ()

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
        if loop.moves and (loop.feeds or self._calls_module(reference, loop)):
            return LoopKind.BATCH_LIKELY
        if loop.no_grad and loop.unpacks and self._calls_module(reference, loop):
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

    def _calls_module(self, reference: Reference, loop: Loop) -> bool:
        if loop.models:
            return True
        function = self.project.function(reference)
        number = function.loops.index(loop)
        for call in function.calls:
            if number in call.stack and self._is_module(self.project.answer(call.callee, reference.path)):
                return True
        return False

    def _is_module(self, answer: Term) -> bool:
        if isinstance(answer, tuple) and answer[0] == "instance":
            return self.project.is_module(answer[1], self.project.files[answer[1]].classes[answer[2]])
        return answer == MODULE

    def _mark_stepping_loops(self) -> None:
        for reference, function in self.project.functions():
            for call in function.calls:
                number = innermost(call.stack, function)
                if number < 0 or self.kinds[reference][number] is LoopKind.BATCH:
                    continue
                if any(target in self.steppers for target in self._called(call, reference.path)):
                    self.kinds[reference][number] = LoopKind.BATCH

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
        self._grow(found, self.callers, in_loops=True)
        return found

    def _mark_epochs(self) -> None:
        for reference, function in self.project.functions():
            kinds = self.kinds.get(reference, [])
            for number, loop in enumerate(function.loops):
                if kinds[number] >= LoopKind.BATCH_LIKELY and loop.parent >= 0:
                    self._mark_epoch(kinds, function, loop.parent)
            for call in function.calls:
                number = innermost(call.stack, function)
                if number >= 0 and any(one in self.loopers for one in self._called(call, reference.path)):
                    self._mark_epoch(kinds, function, number)

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
        while waiting:
            reference = waiting.popleft()
            for target, heat in self._reached(reference):
                if heat.better_than(self.functions.get(target)):
                    self.functions[target] = heat
                    waiting.append(target)

    @cached_property
    def trains(self) -> bool:
        """Some loop makes a backward pass, or a framework is handed a step to train with."""
        if any(loop.trains for _, function in self.project.functions() for loop in function.loops) or self.steppers:
            return True
        return any(
            heat.side is Side.TRAIN and heat.hot and not reference.name.endswith(".forward")
            for reference, heat in self.functions.items()
        )

    def under_no_grad(self, reference: Reference, deep: int = 0) -> bool:
        """Everybody who calls it does so without recording a graph."""
        if self.project.function(reference).no_grad:
            return True
        callers = self.callers.get(reference, [])
        if not callers or deep > 4:
            return False
        return all(call.no_grad or self.under_no_grad(caller, deep + 1) for caller, call in callers)

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
            heat = self._under_guard(heat, frame) if frame < 0 else self._in_loop(heat, reference, function, frame)
        return heat

    def _in_loop(self, heat: Heat | None, reference: Reference, function: Function, number: int) -> Heat | None:
        kind, loop = self.kinds[reference][number], function.loops[number]
        if kind >= LoopKind.BATCH_LIKELY:
            return self._in_batch_loop(heat, reference, loop, kind)
        if heat is not None and heat.frequency is Frequency.EPOCH and self._evaluates(reference, number):
            return self._in_batch_loop(heat, reference, loop, LoopKind.BATCH_LIKELY)
        if kind is LoopKind.EPOCH and (heat is None or heat.frequency.rank < Frequency.EPOCH.rank):
            return Heat(Frequency.EPOCH, Confidence.HIGH, Side.TRAIN, (Step(reference.path, loop.line, "epoch loop"),))
        if kind is LoopKind.ELEMENT and heat is not None and heat.hot:
            step = Step(reference.path, loop.line, "loop over the elements of a tensor")
            return heat._replace(frequency=Frequency.ELEMENT, why=(*heat.why, step))
        return heat

    def _evaluates(self, reference: Reference, number: int) -> bool:
        """A loop through a model, once an epoch, whatever it iterates over: files, indices, clips."""
        key = (reference, number)
        if key not in self._evaluating:
            loop = self.project.function(reference).loops[number]
            plain = self.kinds[reference][number] is LoopKind.PLAIN and not loop.comprehension
            self._evaluating[key] = plain and loop.no_grad and self._calls_module(reference, loop)
        return self._evaluating[key]

    def _in_batch_loop(self, heat: Heat | None, reference: Reference, loop: Loop, kind: LoopKind) -> Heat:
        trains = loop.trains or (not loop.no_grad and self._has_training_call(reference, loop))
        text = "training loop" if trains else "evaluation loop" if loop.no_grad else "loop over batches"
        side = heat.side if heat is not None and heat.side is Side.LOAD else Side.TRAIN if trains else Side.EVALUATE
        confidence = Confidence.HIGH if kind is LoopKind.BATCH else Confidence.MEDIUM
        if loop.epoch:  # an epoch of one batch: nobody reads its loss more rarely than that
            confidence = Confidence.LOW
        before = heat.why if heat is not None and heat.frequency is Frequency.EPOCH else ()
        return Heat(Frequency.BATCH, confidence, side, (*before, Step(reference.path, loop.line, text)))

    def _has_training_call(self, reference: Reference, loop: Loop) -> bool:
        function = self.project.function(reference)
        number = function.loops.index(loop)
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
        if guard in (RARE, FIRST, ERROR) and heat.frequency.rank > Frequency.RARE.rank:
            return heat._replace(frequency=Frequency.RARE)
        return heat


def innermost(stack: Stack, function: Function) -> int:
    for frame in reversed(stack):
        if frame >= 0 and not function.loops[frame].comprehension:
            return frame
    return -1
