"""`hotlap scan` run in this process, and a program in which it finds two things."""

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


# The rules that find something in it, whatever other rules there will be.
TWO = ("--select", "H101,H201")


def scan(*arguments: str) -> tuple[int, str]:
    """Exit code and what was printed."""
    result = CliRunner().invoke(cli, ["scan", *arguments], standalone_mode=False)
    if isinstance(result.exception, HotlapError | click.UsageError):
        return result.exception.exit_code, str(result.exception)
    if result.exception is not None:
        raise result.exception
    return result.return_value or 0, result.output
