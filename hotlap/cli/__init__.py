"""The command line: one file per verb."""

from __future__ import annotations

import io
import sys
import traceback

import click

import hotlap
from hotlap.cli.lazy import LazyGroup, Verb
from hotlap.cli.say import say
from hotlap.errors import INTERNAL_ERROR, INTERRUPTED, HotlapError

VERBS = {
    "bench": Verb("hotlap.cli.bench", "bench", "Train the bundled workloads with several arms and compare them."),
    "compare": Verb("hotlap.cli.compare", "compare", "Tell whether NEW is slower than BASE."),
    "explain": Verb("hotlap.cli.catalogue", "explain", "Explain an optimisation or a rule of hotlap scan."),
    "list": Verb("hotlap.cli.catalogue", "list_entries", "List what hotlap can apply and what it finds in source."),
    "profile": Verb("hotlap.cli.profile", "profile", "Run a training command and show where its time goes."),
    "report": Verb("hotlap.cli.report", "report", "Show or write the report of a tune or a profile."),
    "run": Verb("hotlap.cli.run", "run", "Train with the optimisations that make it faster; no source is touched."),
    "scan": Verb("hotlap.cli.scan", "scan", "Find what slows training down in the source, and repair it."),
    "show": Verb("hotlap.cli.show", "show", "Show a saved run again."),
    "tune": Verb("hotlap.cli.tune", "tune", "Find what makes a training command faster without harm, and prove it."),
}


@click.group(cls=LazyGroup, verbs=VERBS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(hotlap.__version__, prog_name="hotlap")
def cli() -> None:
    """Make PyTorch training faster and prove it.

    Put hotlap and a verb in front of a training command you already have.
    """


def main() -> None:
    _replace_closed_streams()
    try:
        sys.exit(cli.main(standalone_mode=False) or 0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(INTERRUPTED)
    except HotlapError as error:
        say(str(error))
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(1)
    except Exception:  # noqa: BLE001 the last line of defence: take the blame
        traceback.print_exc()
        say("this is a bug in hotlap, not in your program; please report it with the lines above")
        sys.exit(INTERNAL_ERROR)


def _replace_closed_streams() -> None:
    """Drop what is printed to a stream that is closed: Python has None in its place, for which print takes stdout."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, io.StringIO())
