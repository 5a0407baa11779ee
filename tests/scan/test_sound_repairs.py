"""No repair breaks a program, whatever stands around the place it repairs."""

from __future__ import annotations

import pytest

from hotlap.analysis.edits.soundness import flaws
from hotlap.scanning import FindingFilter, repair_text

IMPORTS = """\
import time
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
"""


def fixed(text: str, code: str, unsafe: bool = True) -> str:
    after = repair_text(text, FindingFilter(select=(code,)), unsafe)
    assert not flaws(text, after)
    return after


@pytest.mark.parametrize(
    ("before", "after", "flaw"),
    [
        ("x = 1\nprint(x)\n", "x = 1\nprint(y)\n", "y is not bound"),
        ("x = 1\nprint(x)\n", "print(x)\nx = 1\n", "x is read before it is set"),
        ("import gc\ngc.collect()\n", "import gc\n", "gc is left unused"),
        ("def f():\n    x = 1\n    return x\n", "def f():\n    x = 1\n    return 1\n", "x is set and never read"),
        ("if a:\n    f()\n", "if a:\n    pass\n", "a block is left empty"),
        ("f(a)\n", "f(a,, b)\n", "it is not valid Python"),
    ],
)
def test_a_repair_that_breaks_the_file_is_recognised(before, after, flaw):
    assert flaw in flaws(before, after)[0]


def test_what_was_wrong_before_the_repair_does_not_prevent_it():
    before = "import os\nprint(missing, x)\nx = 1\n"
    assert flaws(before, before.replace("x = 1", "x = 2")) == []


MIXED = """
def main(model: nn.Module, loader: DataLoader, val_loader: DataLoader, optimizer):
    for epoch in range(3):
        for x, y in loader:
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        total = 0.0
        for x, y in val_loader:
            total += F.mse_loss(model(x), y).item()
        model.train()
        print(total)
"""


def test_inference_mode_wraps_the_evaluation_of_a_function_that_also_trains():
    after = fixed(IMPORTS + MIXED, "H206", unsafe=False)
    assert after == IMPORTS + MIXED.replace(
        "        for x, y in val_loader:\n            total += F.mse_loss(model(x), y).item()\n",
        "        with torch.inference_mode():\n            for x, y in val_loader:\n"
        "                total += F.mse_loss(model(x), y).item()\n",
    )


EVALUATION = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.mask = None

    def forward(self, x):
{forward}
        return self.layer(x)


def evaluate(model: Net, loader: DataLoader):
    model.eval()
    total = 0.0
{head}        for x, y in loader:
            total += F.mse_loss(model(x), y).item()
    return total


def main(model: Net, loader: DataLoader, optimizer):
    for epoch in range(3):
        for x, y in loader:
            F.mse_loss(model(x), y).backward()
            optimizer.step()
        evaluate(model, loader)
"""
NO_GRAD = "    with torch.no_grad():\n"
KEEPING = {
    "in an attribute": "        self.mask = torch.ones_like(x)",
    "in a list of the model": "        self.outputs.append(x * 2)",
    "in a table of the file": "        MASKS[x.shape] = torch.ones_like(x)",
    "as a global": "        global last\n        last = x * 2",
    "as a buffer": '        self.register_buffer("mask", torch.ones(4))',
}


@pytest.mark.parametrize("forward", KEEPING.values(), ids=KEEPING)
@pytest.mark.parametrize(("head", "code"), [(NO_GRAD, "H207"), ("    if True:\n", "H206")])
def test_inference_mode_is_not_offered_where_the_model_keeps_a_tensor(forward, head, code):
    text = IMPORTS + "MASKS = {}\n" + EVALUATION.format(forward=forward, head=head)
    assert fixed(text, code) == text


@pytest.mark.parametrize(("head", "code"), [(NO_GRAD, "H207"), ("    if True:\n", "H206")])
def test_inference_mode_is_offered_where_the_model_keeps_only_numbers(head, code):
    text = IMPORTS + EVALUATION.format(forward="        self.length = x.size(0)", head=head)
    assert "inference_mode" in fixed(text, code, unsafe=False)


def test_inference_mode_of_a_model_from_an_unknown_library_is_unsafe():
    text = IMPORTS + "import unheard_of\n" + EVALUATION.format(forward="        x = x + 1", head=NO_GRAD)
    assert fixed(text, "H207", unsafe=False) == text
    assert "inference_mode" in fixed(text, "H207")


def test_inference_mode_is_not_offered_where_a_tensor_leaves_the_block():
    text = IMPORTS + EVALUATION.format(forward="        x = x + 1", head=NO_GRAD).replace(
        "total += ", "last = "
    ).replace("(model(x), y).item()", "(model(x), y)").replace("return total", "return last")
    assert fixed(text, "H207") == text


def test_inference_mode_is_not_offered_for_sharded_models():
    text = IMPORTS + "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    text += EVALUATION.format(forward="        x = x + 1", head=NO_GRAD)
    assert fixed(text, "H207") == text
