"""Tells what each loop of a project iterates over: epochs, batches, elements of a tensor, or anything else."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from functools import cached_property

from hotlap.analysis.frequency import hooks
from hotlap.analysis.frequency.shared_steps import sharing
from hotlap.analysis.frequency.steps import grow, steppers
from hotlap.analysis.names.classes import Reference
from hotlap.analysis.names.modules import argument
from hotlap.analysis.names.project import Project
from hotlap.analysis.parse.facts import Call, Function, Loop, Stack
from hotlap.analysis.parse.statements import is_static
from hotlap.analysis.parse.terms import BATCH, EXTENT, HOST, LOADERS, MODULE, NUMBER, NUMPY, TENSOR, UNKNOWN, Term
from hotlap.analysis.parse.torch_names import method


class LoopKind(IntEnum):
    PLAIN = 0
    EPOCH = 1
    ELEMENT = 2
    BATCH_LIKELY = 3
    BATCH = 4


class Loops:
    """The kind of every loop of a project, and the functions that make a training step."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self._recording: dict[tuple[Reference, int], bool] = {}
        self._differentiating: dict[tuple[Reference, int], bool] = {}
        self.callers = self._callers()
        self.steppers = steppers(project, self.callers)
        self.kinds: dict[Reference, list[LoopKind]] = {}
        self._find_kinds()
        assumed = set(self._unknown_loaders())
        if assumed:
            project.assume_loaders(assumed)
            self._find_kinds()
        self._mark_evaluating_loops()
        self._mark_gathering_loops()
        self.loopers = self._loopers()
        self._mark_epochs()
        self.trainings: set[Reference] = set()  # functions that run a whole training, themselves or through others
        self.around = self._around_trainings()

    def _find_kinds(self) -> None:
        for reference, function in self.project.functions():
            if function.loops:
                self.kinds[reference] = [self._kind(reference, loop) for loop in function.loops]
        self._mark_stepping_loops()
        trained = {reference: [kind is LoopKind.BATCH for kind in kinds] for reference, kinds in self.kinds.items()}
        for reference, number in sharing(self.project, trained):
            if self.kinds[reference][number] is LoopKind.PLAIN:
                self.kinds[reference][number] = LoopKind.BATCH_LIKELY

    def _unknown_loaders(self) -> Iterator[tuple[Term, str]]:
        """Yield the iterables of loops over batches whose origin is unknown: an argument, an attribute, a call."""
        for reference, kinds in self.kinds.items():
            loops = self.project.function(reference).loops
            for loop, kind in zip(loops, kinds, strict=True):
                if loop.parent >= 0 and self._differentiates_losses(reference, loops[loop.parent], [loop]):
                    continue
                over = loop.over
                while isinstance(over, tuple) and over[0] == "enumerated":
                    over = over[1]
                unresolved = (
                    isinstance(over, tuple) and over[0] in ("param", "attr", "call", "index") and not loop.weights
                )
                if unresolved and kind is LoopKind.BATCH and self.project.answer(over, reference.path) == UNKNOWN:
                    yield over, reference.path

    def _callers(self) -> dict[Reference, list[tuple[Reference, Call]]]:
        result: dict[Reference, list[tuple[Reference, Call]]] = {}
        for reference, function in self.project.functions():
            for call in function.calls:
                for target in self._called(call, reference.path):
                    result.setdefault(target, []).append((reference, call))
        return result

    def _called(self, call: Call, origin: str) -> Iterator[Reference]:
        """Yield the functions that a call runs, including those passed to it as callbacks."""
        targets: list[Reference] = []
        if self.project.may_be_own(call.callee):
            targets = self.project.targets(call.callee, origin) or self.project.fitting(call, origin)
        yield from targets
        for target in targets:
            yield from self._callbacks(call, target, origin)
            if call.event and self.project.function(target).sends:
                yield from self.project.methods_called(call.event)
        if not targets and hooks.runs_its_arguments(call.callee):
            for term in call.arguments:
                yield from self.project.targets(term, origin) if isinstance(term, tuple) else ()

    def _callbacks(self, call: Call, target: Reference, origin: str) -> Iterator[Reference]:
        """Yield the functions passed to a function that calls its argument: `with_events(self.backward)`."""
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
        if loop.strided and not loop.comprehension and self._calls_module(reference, loop, deep=1):
            return LoopKind.BATCH_LIKELY  # data[i : i + size] through a model
        if over in (TENSOR, BATCH, HOST, EXTENT, NUMPY):
            return LoopKind.ELEMENT
        if loop.comprehension or loop.weights:
            given = loop.moves or (loop.unpacks and loop.no_grad and loop.over != NUMBER)
            feeds = given and not loop.weights and (loop.feeds or self._calls_module(reference, loop))
            return LoopKind.BATCH_LIKELY if feeds else LoopKind.PLAIN
        if self.project.is_loader(over):
            return LoopKind.BATCH
        if self.project.gives_in_turn(over) and (
            self.project.is_own_loader(over) or self._calls_module(reference, loop, deep=1)
        ):
            return LoopKind.BATCH_LIKELY
        if loop.moves and (loop.feeds or self._calls_module(reference, loop, deep=1)):
            return LoopKind.BATCH_LIKELY
        if loop.unpacks and (
            self._calls_module(reference, loop, deep=2) if loop.no_grad else self._infers(reference, loop)
        ):
            return LoopKind.BATCH_LIKELY
        looks = loop.unpacks and self.project.function(reference).evaluates
        named = looks and self._is_named_loader(loop.over, reference)
        looks = named and (loop.no_grad or self._calls_module(reference, loop, deep=2))
        return LoopKind.BATCH_LIKELY if looks else LoopKind.PLAIN

    def _is_named_loader(self, over: Term, reference: Reference) -> bool:
        """Match an argument or attribute, named like a loader, that the project never sets: `self.test_loader`."""
        while isinstance(over, tuple) and over[0] == "enumerated":
            over = over[1]
        if not isinstance(over, tuple) or over[0] not in ("param", "attr"):
            return False
        name = (
            over[2]
            if over[0] == "attr"
            else self.project.function(Reference(reference.path, over[1])).parameters[over[2]]
        )
        return name.lower().endswith("loader") and self.project.answer(over, reference.path) == UNKNOWN

    def _iterated(self, term: Term) -> Term:
        """Return the iterable inside enumerate and zip, preferring a loader."""
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

    def _evaluates_in_turns(self, reference: Reference, loop: Loop) -> bool:
        """Match a loop over `trainer.predict(batch)`, which puts its model in evaluation mode itself and runs it."""
        function = self.project.function(reference)
        number = function.loops.index(loop)
        return loop.over != NUMBER and any(
            number in call.stack
            and call.arguments
            and any(
                self.project.function(target).evaluates for target in self.project.targets(call.callee, reference.path)
            )
            and self._runs_module(call, reference.path, 2)
            for call in function.calls
        )

    def _infers(self, reference: Reference, loop: Loop) -> bool:
        """Match a loop that calls a module without recording a graph, though the loop itself does not disable it."""
        function = self.project.function(reference)
        number = function.loops.index(loop)
        if loop.over == NUMBER:  # steps of a generation
            return False
        return loop.quiet or any(
            call.no_grad and number in call.stack and self._runs_module(call, reference.path, 1)
            for call in function.calls
        )

    def _runs_module(self, call: Call, origin: str, deep: int) -> bool:
        """Return whether the call runs a module, directly or in one of the functions that it runs."""
        callee = call.callee
        if self.project.is_model(self.project.answer(callee, origin)):
            return is_run(callee)
        own = callee[:1] == ("attr",) and callee[2] == "forward" and callee[1][:1] == ("self",)
        if own and self.project.is_model(self.project.answer(callee[1], origin)):
            return True  # subclasses define it
        return deep > 0 and any(
            self._runs_module(inner, target.path, deep - 1)
            for target in self.project.targets(call.callee, origin)
            for inner in self.project.function(target).calls
        )

    def records(self, callee: Term, origin: str, deep: int = 3) -> bool:
        """Return whether calling it runs a module with its graph recorded, directly or through other functions."""
        return any(self._records_in(target, deep) for target in self.project.targets(callee, origin))

    def _records_in(self, target: Reference, deep: int) -> bool:
        known = self._recording.get((target, deep))
        if known is None:
            function = self.project.function(target)
            may_record = not function.no_grad and target not in self.steppers
            known = self._recording[target, deep] = may_record and (
                function.models or any(self._is_recorded(call, target.path, deep) for call in function.calls)
            )
        return known

    def _is_recorded(self, call: Call, origin: str, deep: int) -> bool:
        if call.no_grad:
            return False
        if self.project.is_model(self.project.answer(call.callee, origin)):
            return is_run(call.callee)
        return deep > 0 and self.records(call.callee, origin, deep - 1)

    def differentiates(self, callee: Term, origin: str, deep: int = 3) -> bool:
        """Return whether calling it makes a backward pass, directly or through other functions."""
        return any(self._differentiates_in(target, deep) for target in self.project.targets(callee, origin))

    def _differentiates_in(self, target: Reference, deep: int) -> bool:
        known = self._differentiating.get((target, deep))
        if known is None:
            function = self.project.function(target)
            known = function.steps or any(loop.trains for loop in function.loops)
            if not known and deep > 0:
                known = any(self.differentiates(call.callee, target.path, deep - 1) for call in function.calls)
            self._differentiating[target, deep] = known
        return known

    def _mark_stepping_loops(self) -> None:
        for reference, function in self.project.functions():
            for call in function.calls:
                number = innermost(call.stack, function)
                if number < 0 or self.kinds[reference][number] is LoopKind.BATCH:
                    continue
                if any(target in self.steppers for target in self._called_here(call, reference.path)):
                    self.kinds[reference][number] = LoopKind.BATCH

    def _called_here(self, call: Call, origin: str) -> Iterator[Reference]:
        """Yield what a call runs, except functions that its callee calls in a loop: `run_epoch(loader, self.step)`."""
        turning = {
            given
            for target in self.project.targets(call.callee, origin)
            if self._called_parameters.get(target, set()) <= self._turned_parameters.get(target, set())
            for given in self._callbacks(call, target, origin)
        }
        yield from (called for called in self._called(call, origin) if called not in turning)

    @cached_property
    def _turned_parameters(self) -> dict[Reference, set[int]]:
        """The parameters that are called in a loop, by function."""
        found: dict[Reference, set[int]] = {}
        for reference in self._called_parameters:
            for call in self.project.function(reference).calls:
                callee = call.callee
                own = isinstance(callee, tuple) and callee[0] == "param" and callee[1] == reference.name
                if own and any(frame >= 0 for frame in call.stack):
                    found.setdefault(reference, set()).add(callee[2])  # type: ignore[arg-type]
        return found

    def _mark_evaluating_loops(self) -> None:
        for step in hooks.evaluation_steps(self.project):
            for reference, call in self.callers.get(step, ()):
                number = innermost(call.stack, self.project.function(reference))
                if number >= 0 and self.kinds[reference][number] is LoopKind.PLAIN:
                    self.kinds[reference][number] = LoopKind.BATCH_LIKELY

    def _mark_gathering_loops(self) -> None:
        """Mark the loop that steps as the one over batches if it contains a loop over micro-batches that only
        accumulates gradients, or a loop over the losses of one batch."""
        for reference, kinds in self.kinds.items():
            loops = self.project.function(reference).loops
            for number, loop in enumerate(loops):
                inner = [nested for nested in loops if nested.parent == number and nested.trains]
                gathers = loop.updates and not any(nested.updates for nested in inner)
                if inner and (gathers or self._differentiates_losses(reference, loop, inner)):
                    kinds[number] = LoopKind.BATCH

    def _differentiates_losses(self, reference: Reference, loop: Loop, inner: list[Loop]) -> bool:
        """Match `for loss in losses: loss.backward()`: data enters in the outer loop, never in the inner ones."""
        given = (loop.moves or loop.unpacks) and not loop.epoch and loop.over != NUMBER
        return given and not any(
            nested.moves
            or nested.unpacks
            or nested.over in (NUMBER, UNKNOWN)
            or self._iterated(self.project.answer(nested.over, reference.path)) in LOADERS
            for nested in inner
        )

    def _loopers(self) -> set[Reference]:
        """Return the functions that run a whole loop over batches, themselves or through what they call."""
        found = {
            reference for reference, kinds in self.kinds.items() if any(kind >= LoopKind.BATCH_LIKELY for kind in kinds)
        }
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
                if number >= 0 and self._goes_through(kinds[number], function.loops[number], call, reference.path):
                    self._mark_epoch(kinds, function, number)

    def _goes_through(self, kind: LoopKind, loop: Loop, call: Call, origin: str) -> bool:
        """Return whether the call runs a whole loop over batches. If only one of many classes does so, that says
        nothing about the others."""
        if kind is LoopKind.BATCH_LIKELY and loop.moves:
            return False  # an attack or a solver for every batch
        every = list(self._called(call, origin))
        loops = sum(called in self.loopers for called in every)
        return loops * 2 > len(every) if kind is LoopKind.BATCH_LIKELY and loop.over != NUMBER else loops > 0

    def _around_trainings(self) -> set[tuple[Reference, int]]:
        """Return the loops over folds, seeds or trials: those around a loop over epochs, here or in their calls."""
        found: set[tuple[Reference, int]] = set()
        trainings = self.trainings
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
        """Unmark a loop over long sequences as one over batches if each sequence is trained on piece by piece."""
        loop = function.loops[number]
        if not loop.trains and not loop.updates:
            kinds[number] = LoopKind.EPOCH

    def _mark_epoch(self, kinds: list[LoopKind], function: Function, number: int) -> None:
        while number >= 0:
            loop = function.loops[number]
            likely = kinds[number] is LoopKind.BATCH_LIKELY or loop.epoch
            if loop.moves and loop.parent >= 0 and function.loops[loop.parent].epoch and not loop.trains:
                kinds[number] = max(kinds[number], LoopKind.BATCH_LIKELY)  # a batch, of which each part is a step
            elif kinds[number] is LoopKind.PLAIN or (likely and not loop.trains):
                kinds[number] = LoopKind.EPOCH
            number = loop.parent


def is_run(callee: Term) -> bool:
    """Match `model(x)` and `model.encoder(x)`, not `model.eval()`."""
    named = isinstance(callee, tuple) and callee[0] == "attr"
    return not named or method(MODULE, callee[2], [], on_host=False) == TENSOR


def innermost(stack: Stack, function: Function) -> int:
    for frame in reversed(stack):
        if frame >= 0 and not function.loops[frame].comprehension:
            return frame
    return -1


def _outer(loops: list[Loop], number: int) -> Iterator[int]:
    """Yield a loop and those around it."""
    while number >= 0:
        yield number
        number = loops[number].parent
