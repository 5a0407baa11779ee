"""Verbs are imported only when used, so `hotlap --help` and quick verbs do not pay for the libraries of others."""

from __future__ import annotations

import difflib
import importlib
import shutil
from collections.abc import Mapping
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem


class Verb(NamedTuple):
    module: str
    name: str  # of the command in the module
    help: str  # one line for `hotlap --help`
    examples: tuple[str, ...]  # what each does may follow, after several spaces

    @property
    def example(self) -> str:
        return self.examples[0].partition("  ")[0]


class LazyGroup(click.Group):
    def __init__(self, *arguments: Any, groups: Mapping[str, Mapping[str, Verb]], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.groups = groups
        self.verbs = {name: verb for group in groups.values() for name, verb in group.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        verb = self.verbs.get(cmd_name)
        if verb is None:
            return None
        command = getattr(importlib.import_module(verb.module), verb.name)
        assert isinstance(command, click.Command)
        command.epilog = "\n".join(["\b", "Examples:", *(f"  {example}" for example in verb.examples)])
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # click's parser of options gives none
            raise

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        if word not in self.verbs and not word.startswith("-"):
            raise click.UsageError(f"no such verb: {word}; {self._suggestion(args)}", ctx)
        return super().resolve_command(ctx, args)

    def _suggestion(self, args: list[str]) -> str:
        if args[0] == "help":
            return f"type hotlap {' '.join([*args[1:2], '--help'])}"
        if args[0].endswith(".py"):
            return f"put a verb and python in front of a script: hotlap run python {' '.join(args)}"
        if shutil.which(args[0]):
            return f"put a verb in front of a command: hotlap run {' '.join(args)}"
        if near := difflib.get_close_matches(args[0], self.verbs, n=1):
            return f"did you mean hotlap {near[0]}?"
        return f"there are {', '.join(self.verbs)}"

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete a verb without importing it."""
        if incomplete.startswith("-"):
            return click.Command.shell_complete(self, ctx, incomplete)
        return [
            CompletionItem(name, help=verb.help) for name, verb in self.verbs.items() if name.startswith(incomplete)
        ]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, verbs in self.groups.items():
            with formatter.section(heading):
                formatter.write_dl([(f"{name:<10}", verb.help) for name, verb in verbs.items()])
