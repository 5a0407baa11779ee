"""Works out what the arguments of a function are, from its annotations, its defaults and its callers."""

from __future__ import annotations

from hotlap.analysis.names.classes import Reference
from hotlap.analysis.names.modules import argument, is_object
from hotlap.analysis.names.questions import Questions
from hotlap.analysis.parse.annotations import of_name
from hotlap.analysis.parse.facts import Function
from hotlap.analysis.parse.statements import is_static
from hotlap.analysis.parse.terms import DEVICE, HOST_DEVICE, LOADERS, MODULE, NUMBER, TENSOR, TEXT, UNKNOWN, Term, join


def _has_other_device(function: Function, number: int) -> bool:
    """Return whether the function takes the model's device and the host's: `evaluate(model, device, cpu_device)`."""
    return any("device" in name.lower() for place, name in enumerate(function.parameters) if place != number)


class Parameters(Questions):
    def _parameter(self, path: str, name: str, number: int) -> Term:
        reference = Reference(path, name)
        function = self.function(reference)
        annotated = function.annotations[number]
        result: Term = self._annotated(annotated, path) if annotated else UNKNOWN
        if result not in (UNKNOWN, MODULE) and not (isinstance(result, tuple) and result[0] == "name"):
            return result
        result = UNKNOWN if isinstance(result, tuple) else result
        shift = 1 if function.owner and not is_static(function) else 0
        for place, default in function.defaults:
            if place == number:
                result = join(result, self._standing_in(default, path))
        plain = False
        for origin, call in self.callers.get(reference, ()):
            place = number - shift if number < len(function.parameters) - function.named else -1
            given = argument(call, place, function.parameters[number])
            if given is not None:
                answer = self.answer(given, origin)
                plain = plain or answer in (NUMBER, TEXT)
                result = join(result, answer)
        if result == HOST_DEVICE and not _has_other_device(function, number):
            result = DEVICE  # other callers may pass another one
        return UNKNOWN if plain and result == TENSOR else result  # a tensor here, a number there: neither is sure

    def _annotated(self, annotation: Term, path: str) -> Term:
        """Return what an annotation says, also through an alias of the project: `Scores = torch.FloatTensor`."""
        if isinstance(annotation, tuple) and annotation[0] == "call":
            named = self.answer(annotation[1], path)
            return self.answer(of_name(named), path) if named[:1] == ("name",) else self.answer(annotation, path)
        return self.answer(annotation, path)

    def _rest(self, reference: Reference) -> Term:
        """Return the join of all arguments that callers pass beyond the named ones."""
        function = self.function(reference)
        shift = 1 if function.owner and not is_static(function) else 0
        first = len(function.parameters) - function.named - shift
        result: Term = UNKNOWN
        for origin, call in self.callers.get(reference, ()):
            for given in call.arguments[first:]:
                result = join(result, self.answer(given, origin))
        return result

    def _standing_in(self, default: Term, path: str) -> Term:
        """Return a default that is a class, a function or a model: `klass=DataLoader`, `loss=nn.MSELoss()`."""
        answer = self.answer(default, path)
        known = answer in (MODULE, *LOADERS) or (is_object(answer) and answer[0] != "join")
        return answer if known else UNKNOWN
