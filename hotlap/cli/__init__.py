"""The command line: one file per verb."""

from __future__ import annotations

import sys
import traceback

import click

import hotlap
from hotlap.cli.bench import bench
from hotlap.cli.catalogue import explain, list_entries
from hotlap.cli.profile import profile
from hotlap.cli.run import run
from hotlap.cli.show import show
from hotlap.errors import INTERNAL_ERROR, INTERRUPTED, HotlapError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(hotlap.__version__, prog_name="hotlap")
def cli() -> None:
    """Makes PyTorch training fast and proves it.

    Put hotlap and a verb in front of a training command you already have.
    """


cli.add_command(profile)
cli.add_command(run)
cli.add_command(list_entries)
cli.add_command(explain)
cli.add_command(show)
cli.add_command(bench)


def main() -> None:
    try:
        sys.exit(cli.main(standalone_mode=False) or 0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(INTERRUPTED)
    except HotlapError as error:
        print(f"hotlap: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(1)
    except Exception:  # noqa: BLE001 the last line of defence: say that it is ours
        traceback.print_exc()
        print(
            "hotlap: this is a bug of hotlap, not of your program; please report it with the lines above",
            file=sys.stderr,
        )
        sys.exit(INTERNAL_ERROR)
