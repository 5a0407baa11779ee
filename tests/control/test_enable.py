"""hotlap.enable works before or after torch is imported, twice, and as a with block, and disabling leaves no trace."""

from __future__ import annotations

import sys

import pytest
import torch
from harness import bare, warm

import hotlap
from hotlap.errors import PlanUnusable, UnknownOptimization

TRAIN = """
def train():
    import torch
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    losses, fused = [], []
    optimizer.register_step_post_hook(lambda optimizer, *_: fused.append(optimizer.param_groups[0]["fused"]))
    for _ in range(6):
        loss = model(torch.ones(2, 3)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, fused[-1]
"""

APPLIED = "_, fused = train()\nprint('fused', fused, e.outcomes[0].status)\n"
DISABLED = """
hotlap.disable()
from torch.optim import optimizer as hooks
_, fused = train()
print('fused', fused)
wrapped = [hasattr(owner, '__wrapped__') for owner in (torch.autograd.backward, torch.utils.data.DataLoader.__init__)]
print(len(hooks._global_optimizer_pre_hooks), *wrapped)
"""
LEFT = ["fused None", "0 False False"]


def test_applies_entries_after_importing_torch_and_leaves_no_trace(tmp_path):
    script = tmp_path / "train.py"
    enables = "import torch, hotlap\ne = hotlap.enable(None, with_=['C106'])\n"
    script.write_text(enables + TRAIN + APPLIED + DISABLED)
    ran = warm([sys.executable, str(script)], tmp_path)
    assert ran.stdout.splitlines() == ["fused True applied", *LEFT], ran.stderr


def test_applies_entries_before_importing_torch_and_again_and_leaves_no_trace(tmp_path):
    script = tmp_path / "train.py"
    enables = "import hotlap\ne = hotlap.enable(None, with_=['fused-optimizer'])\nprint(e)\nimport torch\n"
    again = "hotlap.enable()\nprint('fused', train()[1])\ne = hotlap.enable(None, with_=['fused-optimizer'])\n"
    script.write_text(enables + TRAIN + APPLIED + again + APPLIED + DISABLED)
    ran = bare([sys.executable, str(script)], tmp_path)
    waiting = "waiting for torch to be imported"
    seen = [waiting, "fused True applied", "fused None", "fused True applied", *LEFT]
    assert ran.stdout.splitlines() == seen, ran.stderr


def test_hotlap_off_makes_it_inert(tmp_path):
    script = tmp_path / "train.py"
    enables = "import torch, hotlap\ne = hotlap.enable(None, with_=['C106'])\n"
    script.write_text(enables + TRAIN + "print(train()[1], e.outcomes)\n")
    ran = warm([sys.executable, str(script)], tmp_path, HOTLAP="off")
    assert ran.stdout == "None ()\n", ran.stderr


def steps_fused() -> bool:
    """Returns whether the optimizer's steps are fused, which its groups show only during a step."""
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    optimizer, fused = torch.optim.AdamW([parameter], lr=0.1), []
    optimizer.register_step_post_hook(lambda optimizer, *_: fused.append(optimizer.param_groups[0]["fused"]))
    optimizer.step()
    return bool(fused[0])


def test_a_with_block_disables_it_even_when_the_block_fails():
    enabled = hotlap.enable(None, with_=["fused-optimizer"])

    def fails() -> None:
        with enabled:
            assert steps_fused()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert "applied: fused-optimizer" in repr(enabled)
    assert not steps_fused()


def test_enabling_again_replaces_what_was_enabled():
    first = hotlap.enable(None, with_=["fused-optimizer"])
    second = hotlap.enable(None)
    assert not steps_fused()
    assert second.outcomes == ()
    assert repr(second) == "nothing to apply"
    assert first.outcomes[0].status == "no effect"
    hotlap.disable()
    hotlap.disable()


def test_rejects_unknown_names_and_keeps_what_was_enabled():
    with hotlap.enable(None, with_=["fused-optimizer"]) as enabled:
        with pytest.raises(UnknownOptimization, match="did you mean fused-optimizer"):
            hotlap.enable(None, with_=["fused-optimiser"])
        with pytest.raises(PlanUnusable, match=r"cannot read the plan: missing\.json"):
            hotlap.enable("missing.json")
        assert steps_fused()
        assert enabled.outcomes[0].status == "applied"


def test_loader_workers_are_left_alone():
    from torch.utils.data import DataLoader

    with hotlap.enable(None, with_=["fused-optimizer"]):
        assert not next(iter(DataLoader(Patched(), num_workers=1, multiprocessing_context="fork"))).item()
        assert Patched()[0]


class Patched(torch.utils.data.Dataset):
    """Each sample tells whether hotlap is at work in the process that makes it."""

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return hasattr(torch.utils.data.DataLoader.__iter__, "__wrapped__")
