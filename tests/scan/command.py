"""Runs `hotlap scan` in this process, and holds a program with two findings."""

from __future__ import annotations

import click
from click.testing import CliRunner

from hotlap.cli import cli
from hotlap.errors import HotlapError

PROGRAM = """\
import torch

def train(model, loader, optimizer):
    total = 0.0
    for x, y in loader:
        loss = model(x, y)
        loss.backward()
        optimizer.step()
        total += loss.item()
        torch.cuda.empty_cache()
    return total
"""


# The two rules that apply to PROGRAM; selecting them keeps the tests independent of rules added later.
TWO = ("--select", "H101,H201")


def scan(*arguments: str) -> tuple[int, str]:
    """The exit code and what was printed."""
    result = CliRunner().invoke(cli, ["scan", *arguments], standalone_mode=False)
    if isinstance(result.exception, HotlapError | click.UsageError):
        return result.exception.exit_code, str(result.exception)
    if result.exception is not None:
        raise result.exception
    return result.return_value or 0, result.output
