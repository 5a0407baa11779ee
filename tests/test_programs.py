"""hotlap profile observes unmodified programs of every kind correctly and does not change their behaviour."""

import sys

import pytest
from harness import PROGRAMS, TORCHRUN, alone, printed_losses, profile, python
from warm import warmed

STEPS = 24
KINDS = {
    "a plain loop": python("plain_loop.py"),
    "two optimizers": python("two_optimizers.py"),
    "accumulation": python("accumulation.py"),
    "a gradient scaler": python("grad_scaler.py"),
    "an IterableDataset": python("iterable.py"),
    "no DataLoader": python("no_loader.py"),
    "Lightning": python("lightning_fit.py"),
    "Accelerate": python("accelerate_loop.py"),
    "HF Trainer": python("hf_trainer.py"),
    "torchrun": [*TORCHRUN, str(PROGRAMS / "data_parallel.py")],
    "accelerate launch":
        [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1", "--num_machines", "1",
         "--mixed_precision", "no", "--dynamo_backend", "no", str(PROGRAMS / "accelerate_loop.py")],
    "python -m": [sys.executable, "-m", "package", "--lr", "0.1"],
    "execv": python("execs_itself.py"),
    "own processes by fork": python("own_processes.py", "fork"),
    "own processes by spawn": python("own_processes.py", "spawn"),
}  # fmt: skip
STARTED_AS = {"accelerate launch": "Accelerate", "python -m": "a plain loop", "execv": "a plain loop"}
PRINTED_FIRST = {"python -m": "__main__ package ['--lr', '0.1']\n"}
ENTERED_AS_THE_PLAIN_LOOP = (
    "two optimizers",
    "accumulation",
    "a gradient scaler",
    "an IterableDataset",
    "no DataLoader",
    "Lightning",
    "HF Trainer",
)


LONGEST = ("own processes by spawn", "Accelerate")  # covered by test_run and by "accelerate launch"


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.thorough) if kind in LONGEST else kind for kind in KINDS]
)
def test_a_program_is_observed_correctly_and_runs_as_without_hotlap(kind, tmp_path, tmp_path_factory):
    expected = alone(tmp_path_factory, KINDS[STARTED_AS.get(kind, kind)])
    as_typed = warmed(KINDS[kind]) if kind in ENTERED_AS_THE_PLAIN_LOOP else KINDS[kind]
    watched = profile(as_typed, tmp_path, "--full", PYTHONPATH=str(PROGRAMS))

    assert expected.code == 0, expected.stderr
    assert watched.code == 0, watched.stderr
    assert watched.stdout == PRINTED_FIRST.get(kind, "") + expected.stdout
    seen = watched.observation
    assert seen["losses"] == printed_losses(expected.stdout)
    assert len(seen["losses"]) == STEPS
    assert seen["steps"] + seen["warmup"]["steps"] == STEPS
    assert seen["cautions"].count("OWN_ERROR") == 0
    assert sum(seen["shares"].values()) == pytest.approx(1.0)
