"""The inferred kind of an expression: device tensor, number, key or model, and unknown where nothing is certain."""

from __future__ import annotations

import ast
import textwrap

import pytest

from hotlap.analysis.frequency.hotness import Hotness
from hotlap.analysis.names.project import Project
from hotlap.analysis.parse import flow
from hotlap.analysis.queries.code import Code

HEAD = "import functools\nimport torch\nimport torch.nn as nn\nfrom torch.utils.data import DataLoader\n"


def kinds(text: str) -> list[str]:
    """The kind of the argument of every `see(…)` in a program."""
    program = HEAD + textwrap.dedent(text)
    tree = ast.parse(program)
    code = Code("train.py", program, tree, Hotness(Project([flow.read(tree, "train.py", "train", program)])))
    return [code.kind(call.args[0]) for call in code.calls("see")]


LOOP = """
model = nn.Linear(4, 3).cuda()
for x, y in DataLoader(data):
    out = model(x.cuda())
    losses = {"one": out.mean(), "two": out.sum()}
"""


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("    see(out)", "tensor"),
        ("    see(out.mean().item())", "number"),
        ("    see(x)", "batch"),
        ("    see(out.detach().cpu())", "host tensor"),
        ("    see(out.shape[0])", "extent"),
        ("    see(losses['one'])", "tensor"),
        ("    see(out.mean() > 3)", "tensor"),
        ("    see(out is None)", "number"),
        ("    see(x['role'] == 'user')", "number"),
        ("    see(out.get_partial_shape())", ""),
        ("    for name in losses: see(name)", ""),
        ("    for name in losses: see(losses[name])", "tensor"),
        ("    for name, one in losses.items(): see(one)", "tensor"),
        ("    for name, one in losses.items(): see(name)", ""),
        ("    for one in losses.values(): see(one)", "tensor"),
        ("    see(sum(losses.values()))", "tensor"),
        ("    for name in list(losses): see(name)", ""),
        ("    for name in sorted(losses.keys()): see(name)", ""),
        ("    moved = {key: one * 2 for key, one in losses.items()}\n    see(moved['one'])", "tensor"),
    ],
)
def test_infers_the_kind_of_values_of_a_batch(text, kind):
    assert kinds(LOOP + text) == [kind]


def test_a_helper_called_with_tensors_and_numbers_has_no_kind():
    program = """
        def default(value, other):
            return value if value is not None else other

        def train(model, loader, strength):
            for x in loader:
                noise = default(None, torch.randn_like(model(x)))
                strength = default(strength, 0.5)
                see(strength)
    """
    assert kinds(program) == [""]


def test_the_result_of_an_unknown_factory_may_be_a_model():
    program = """
        class Model:
            def __init__(self, options):
                self.loss = build_loss(options).to(self.device)

            def step(self):
                see(self.loss)
    """
    assert kinds(program) == [""]


def test_arguments_of_a_partial_function_keep_their_places():
    program = """
        def backward(half, loss):
            see(half)
            see(loss)
            loss.backward()

        def train(model, loader, options):
            run = functools.partial(backward, options.half)
            for x in loader:
                run(model(x.cuda()).sum())
    """
    assert kinds(program)[0] != "tensor"


@pytest.mark.parametrize("annotation", ["dict[str, torch.Tensor]", "Mapping[str, torch.Tensor]"])
def test_annotations_of_mappings_give_the_kind_of_their_values(annotation):
    program = f"def f(losses: {annotation}):\n    see(losses['a'])\n    for one in losses:\n        see(one)\n"
    assert kinds(program) == ["tensor", ""]
