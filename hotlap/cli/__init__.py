"""The command line: one file per verb."""

from __future__ import annotations

import errno
import io
import sys
import traceback
from typing import NoReturn

import click

import hotlap
from hotlap.cli import usage
from hotlap.cli.lazy import LazyGroup
from hotlap.cli.say import say
from hotlap.cli.verbs import GROUPS
from hotlap.errors import INTERNAL_ERROR, INTERRUPTED, HotlapError, RunFolderUnwritable


@click.group(
    cls=LazyGroup,
    groups=GROUPS,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Each verb shows its options and examples: hotlap run --help",
)
@click.version_option(hotlap.__version__, prog_name="hotlap")
@click.pass_context
def cli(context: click.Context) -> None:
    """Make PyTorch training faster and prove it.

    Put hotlap and a verb in front of a training command you already have: hotlap run python train.py
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main() -> None:
    _replace_closed_streams()
    try:
        sys.exit(cli.main(prog_name="hotlap", standalone_mode=False) or 0)
    except click.UsageError as error:
        say(usage.line(error))
        sys.exit(error.exit_code)
    except click.Abort:
        say("interrupted")
        sys.exit(INTERRUPTED)
    except HotlapError as error:
        say(str(error))
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(1)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            _take_the_blame()
        say(f"cannot write the output ({error.strerror})")
        sys.exit(RunFolderUnwritable.exit_code)
    except Exception:  # noqa: BLE001 the last line of defence: take the blame
        _take_the_blame()


def _take_the_blame() -> NoReturn:
    traceback.print_exc()
    say("this is a bug in hotlap, not in your program; please report it with the lines above")
    sys.exit(INTERNAL_ERROR)


def _replace_closed_streams() -> None:
    """Drop what is printed to a stream that is closed: Python has None in its place, for which print takes stdout."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, io.StringIO())
