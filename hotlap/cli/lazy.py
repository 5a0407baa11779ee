"""Verbs are imported only when used, so `hotlap --help` and quick verbs do not pay for the libraries of others."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import click


class Verb(NamedTuple):
    module: str
    name: str  # of the command in the module
    help: str  # one line for `hotlap --help`


class LazyGroup(click.Group):
    def __init__(self, *arguments: Any, verbs: Mapping[str, Verb], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.verbs = verbs

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self.verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        verb = self.verbs.get(cmd_name)
        if verb is None:
            return None
        command = getattr(importlib.import_module(verb.module), verb.name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.verbs[name].help) for name in self.list_commands(ctx)])
