"""Compute entries in a real process: the program prints what it prints without them."""

import subprocess

from harness import HOTLAP, alone, environment, python
from warm import warmed

EXACT = ("inplace-activations", "channels-last", "autocast=fp16")


def test_lightning_prints_the_same(tmp_path, tmp_path_factory):
    program = "lightning_fit.py"  # its steps call backward from a closure
    plain = alone(tmp_path_factory, python(program))
    asked = [part for name in EXACT for part in ("--with", name)]
    command = [*HOTLAP, "run", "--run-dir", str(tmp_path / "kept"), *asked, *warmed(python(program))]
    ran = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120)

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == plain.stdout
    assert "applied: inplace-activations (1 activation " in ran.stderr
    assert "no effect: channels-last" in ran.stderr
