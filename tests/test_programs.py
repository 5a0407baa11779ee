"""hotlap profile observes unmodified programs of every kind correctly and does not change their behaviour."""

import sys

import pytest
from harness import PROGRAMS, TORCHRUN, alone, printed_losses, profile, python
from warm import warmed

KINDS = {
    "a plain loop": (python("plain_loop.py"), 24),
    "two optimizers": (python("two_optimizers.py"), 24),
    "accumulation": (python("accumulation.py"), 24),
    "a gradient scaler": (python("grad_scaler.py"), 24),
    "an IterableDataset": (python("iterable.py"), 24),
    "no DataLoader": (python("no_loader.py"), 24),
    "Lightning": (python("lightning_fit.py"), 24),
    "Accelerate": (python("accelerate_loop.py"), 24),
    "HF Trainer": (python("hf_trainer.py"), 24),
    "torchrun": ([*TORCHRUN, str(PROGRAMS / "data_parallel.py")], 24),
    "accelerate launch": (
        [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1", "--num_machines", "1",
         "--mixed_precision", "no", "--dynamo_backend", "no", str(PROGRAMS / "accelerate_loop.py")],
        24,
    ),
    "python -m": ([sys.executable, "-m", "package", "--lr", "0.1"], 24),
    "execv": (python("execs_itself.py"), 24),
    "own processes by fork": (python("own_processes.py", "fork"), 24),
    "own processes by spawn": (python("own_processes.py", "spawn"), 24),
}  # fmt: skip
ENTERED_AS_THE_PLAIN_LOOP = (
    "two optimizers",
    "accumulation",
    "a gradient scaler",
    "an IterableDataset",
    "no DataLoader",
)


LONGEST = ("own processes by spawn", "Accelerate")  # covered by test_run and by "accelerate launch"


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.thorough) if kind in LONGEST else kind for kind in KINDS]
)
def test_a_program_is_observed_correctly_and_runs_as_without_hotlap(kind, tmp_path, tmp_path_factory):
    command, steps = KINDS[kind]
    expected = alone(tmp_path_factory, command)
    as_typed = warmed(command) if kind in ENTERED_AS_THE_PLAIN_LOOP else command
    watched = profile(as_typed, tmp_path, "--full", PYTHONPATH=str(PROGRAMS))

    assert expected.code == 0, expected.stderr
    assert watched.code == 0, watched.stderr
    assert watched.stdout == expected.stdout
    seen = watched.observation
    assert seen["losses"] == printed_losses(expected.stdout)
    assert len(seen["losses"]) == steps
    assert seen["steps"] + seen["warmup"]["steps"] == steps
    assert seen["cautions"].count("OWN_ERROR") == 0
    assert sum(seen["shares"].values()) == pytest.approx(1.0)
