"""Wrong usage in one line: what was typed, what would be right, and what to type next."""

from __future__ import annotations

import difflib
import re

import click

from hotlap.cli.lazy import LazyGroup

NOT_ALLOWED = re.compile(r"'?(?P<value>.*?)'? is not ")  # click quotes the value and gives it no other way


def line(error: click.UsageError) -> str:
    """Return the line for an error of click, or for one of ours, whose message is already complete."""
    cause = error.__cause__  # an error of click, where a verb has another exit code for it
    if isinstance(cause, click.UsageError):
        cause.ctx = cause.ctx or error.ctx
        return line(cause)
    return _refused(error).rstrip(".")


def _refused(error: click.UsageError) -> str:
    if isinstance(error, click.NoSuchOption):
        return f"no such option: {error.option_name}; {_near(error) or _help(error)}"
    if isinstance(error, click.BadOptionUsage):
        takes = "takes no value" if "does not take" in error.message else "needs a value"
        return f"{error.option_name} {takes}; {_help(error)}"
    if isinstance(error, click.MissingParameter):
        return _missing(error)
    if isinstance(error, click.BadParameter):
        return _bad_value(error)
    if extra := re.search(r"unexpected extra arguments? \((.*)\)", error.message):
        return f"unexpected: {extra[1]}; {_help(error)}"
    return error.message


def _near(error: click.NoSuchOption) -> str:
    near = difflib.get_close_matches(error.option_name, error.possibilities or (), 1, 0.0)
    return f"did you mean {near[0]}?" if near else ""


def _help(error: click.UsageError) -> str:
    verb = _verb(error)
    return f"see: hotlap {verb} --help" if verb else "see: hotlap --help"


def _verb(error: click.UsageError) -> str:
    """Return the verb that was typed; an option without its value is reported in the context of the group."""
    if error.ctx is None:
        return ""
    return str(error.ctx.invoked_subcommand or "") if error.ctx.parent is None else str(error.ctx.info_name)


def _missing(error: click.MissingParameter) -> str:
    name = "" if error.param is None else (error.param.metavar or error.param.human_readable_name).strip(".")
    group = error.ctx.find_root().command if error.ctx is not None else None
    if not isinstance(group, LazyGroup):
        return f"{name} is missing"
    return f"{name} is missing; type, for example: {group.verbs[_verb(error)].example}"


def _bad_value(error: click.BadParameter) -> str:
    option = error.param_hint or (error.param.opts[0] if error.param is not None else "")
    said = NOT_ALLOWED.match(error.message)
    allowed = _allowed(error.param.type) if error.param is not None else ""
    if said is None or not allowed:
        return f"{option}: {error.message}"
    return f"{option} {said['value']}: must be {allowed}"


def _allowed(kind: object) -> str:
    if isinstance(kind, click.Choice):
        *most, last = [str(choice) for choice in kind.choices]
        return f"{', '.join(most)} or {last}"
    if isinstance(kind, click.IntRange):
        return f"a whole number, at least {kind.min}"
    if isinstance(kind, click.FloatRange):
        return f"a number above {kind.min:g}"
    return ""
