"""`hotlap run` under training frameworks on a GPU, with the programs of the CPU tests moved to CUDA."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec

import pytest
from harness import HOTLAP, PROGRAMS, TORCHRUN, Ran, bare, printed_losses

pytestmark = pytest.mark.cuda
MOVED = {  # program → what makes it train on the GPU
    "plain_loop": (
        ("model = Net()", "model = Net().cuda()"),
        ("model(inputs), targets)", "model(inputs.cuda()), targets.cuda())"),
    ),
    "lightning_fit": (('accelerator="cpu"', 'accelerator="gpu", devices=1'),),
    "accelerate_loop": (("Accelerator(cpu=True)", "Accelerator()"),),
    "hf_trainer": (("use_cpu=True,", ""),),
    "data_parallel": (
        ("DistributedDataParallel(Net())", "DistributedDataParallel(Net().cuda())"),
        ("model(inputs), targets)", "model(inputs.cuda()), targets.cuda())"),
        ("loss.detach().reshape(1).numpy()", "loss.detach().reshape(1).cpu().numpy()"),
    ),
}
NEEDS = {"lightning_fit": "lightning", "accelerate_loop": "accelerate", "hf_trainer": "transformers"}


@pytest.fixture(params=MOVED)
def command(request, tmp_path):
    """The command for a program moved to CUDA, in its own folder; torchrun's two ranks share the one GPU."""
    name = request.param
    assert name not in NEEDS or find_spec(NEEDS[name]), f"install {NEEDS[name]}: the test is about it"
    text = (PROGRAMS / f"{name}.py").read_text()
    for before, after in MOVED[name]:
        assert before in text, f"{name}.py no longer says {before}"
        text = text.replace(before, after)
    (tmp_path / f"{name}.py").write_text(text)
    common = (PROGRAMS / "common.py").read_text()
    (tmp_path / "common.py").write_text(common.replace(".contiguous().numpy()", ".contiguous().cpu().numpy()"))
    return [*TORCHRUN, f"{name}.py"] if name == "data_parallel" else [sys.executable, f"{name}.py"]


def under_hotlap(command, folder, plan):
    ran = bare([*HOTLAP, "run", "--run-dir", str(folder / "kept"), "--plan", plan, *command], folder)
    return Ran(ran.code, ran.stdout, ran.stderr, folder / "kept")


def applied(ran):
    processes = [json.loads(path.read_text()) for path in (ran.run / "running").glob("outcomes-*.json")]
    return [
        {outcome["name"] for outcome in process["outcomes"] if outcome["status"] == "applied"} for process in processes
    ]


def test_the_safe_plan_prints_exactly_the_same(command, tmp_path):
    expected = bare(command, tmp_path)
    ran = under_hotlap(command, tmp_path, "safe")
    assert ran.code == expected.code == 0, ran.stderr + expected.stderr
    assert ran.stdout == expected.stdout
    assert "Traceback" not in ran.stderr
    assert all(applied(ran)), "something is applied in every process"


def test_the_fast_plan_changes_only_the_last_digits(command, tmp_path):
    expected = bare(command, tmp_path)
    ran = under_hotlap(command, tmp_path, "fast")
    assert ran.code == expected.code == 0, ran.stderr + expected.stderr
    losses = printed_losses(ran.stdout)
    assert len(losses) == 24
    assert losses == pytest.approx(printed_losses(expected.stdout), rel=1e-3)
