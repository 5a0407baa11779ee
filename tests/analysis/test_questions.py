"""Questions that depend on themselves have the same answers whichever is asked first."""

from __future__ import annotations

import itertools

from hotlap.analysis.names.questions import Questions
from hotlap.analysis.parse.terms import TENSOR, UNKNOWN, join


class Graph(Questions):
    """A question here is answered by joining the answers to the questions that it leads to."""

    def __init__(self, edges: dict[str, tuple[object, ...]]) -> None:
        super().__init__([])
        self.edges, self.made = edges, []

    def _answer(self, term, origin):
        self.made.append(term[1])
        result = UNKNOWN
        for edge in self.edges[term[1]]:
            result = join(result, self.answer(edge, origin))
        return result


def question(name: str) -> tuple[str, str]:
    return ("ask", name)


CIRCLE = {"first": (question("second"),), "second": (question("third"),), "third": (question("first"), TENSOR)}


def test_an_answer_found_inside_a_cycle_is_not_reused_outside_it():
    for order in itertools.permutations(CIRCLE):
        graph = Graph(CIRCLE)
        assert [graph.answer(question(name), "train.py") for name in order] == [TENSOR] * 3, order


def test_a_cycle_without_evidence_is_unknown_and_ends():
    graph = Graph({"first": (question("second"),), "second": (question("first"),)})
    assert graph.answer(question("first"), "train.py") == UNKNOWN
    assert graph.answer(question("second"), "train.py") == UNKNOWN


def test_questions_outside_a_cycle_are_answered_once():
    edges = {
        "outer": (question("inner"), question("outer")),
        "inner": (question("leaf"), question("leaf")),
        "leaf": (TENSOR,),
    }
    graph = Graph(edges)
    assert graph.answer(question("outer"), "train.py") == TENSOR
    assert graph.answer(question("inner"), "train.py") == TENSOR
    assert graph.made == ["outer", "inner", "leaf"]


def test_a_chain_too_long_to_follow_spoils_none_of_its_parts():
    edges = {str(number): (question(str(number + 1)),) for number in range(60)} | {"60": (TENSOR,)}
    graph = Graph(edges)
    assert graph.answer(question("0"), "train.py") == UNKNOWN
    assert graph.answer(question("50"), "train.py") == TENSOR
    assert graph.answer(question("40"), "train.py") == TENSOR
