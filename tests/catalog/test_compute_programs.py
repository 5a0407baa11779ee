"""In a real process, a program under compute entries prints what it prints without them."""

import subprocess

import pytest
from harness import HOTLAP, alone, environment, python
from warm import warmed

EXACT = ("inplace-activations", "channels-last", "autocast=fp16")


@pytest.mark.thorough
def test_a_lightning_program_prints_the_same(tmp_path, tmp_path_factory):
    program = "lightning_fit.py"  # Lightning's steps call backward from a closure
    plain = alone(tmp_path_factory, python(program))
    flags = [part for name in EXACT for part in ("--with", name)]
    command = [*HOTLAP, "run", "--run-dir", str(tmp_path / "kept"), *flags, *warmed(python(program))]
    ran = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=600)

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == plain.stdout
    assert "applied: inplace-activations (1 activation " in ran.stderr
    assert "no effect: channels-last" in ran.stderr
