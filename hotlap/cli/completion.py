"""hotlap completion SHELL: the script with which a shell completes verbs, options, codes and runs."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem, get_completion_class

from hotlap import store
from hotlap.errors import HotlapError

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_HOTLAP_COMPLETE"  # click's name for it: the shell sets it when it asks


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the completion script of a shell, bash, zsh or fish, to be read when the shell starts."""
    script = get_completion_class(shell)
    assert script is not None
    click.echo(script(click.Group("hotlap"), {}, "hotlap", VARIABLE).source())


def commands(context: click.Context, argument: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the words of a training command as files."""
    return [CompletionItem(incomplete, type="file")]


def runs(context: click.Context, argument: click.Parameter, incomplete: str) -> list[CompletionItem]:
    try:
        found = store.every(context.params.get("run_dir"))
    except HotlapError:
        return []
    return [CompletionItem(run.id) for run in reversed(found) if run.id.startswith(incomplete)]


def optimisations(context: click.Context, option: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from hotlap import catalog  # imported only when the shell asks for it

    return [
        CompletionItem(name, help=entry.title)
        for name, entry in catalog.entries().items()
        if name.startswith(incomplete)
    ]


def explained(context: click.Context, argument: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from hotlap.catalog import patterns
    from hotlap.diagnose.cards import cards

    findings = [CompletionItem(code) for code in cards()]
    rules = [CompletionItem(rule.name, help=rule.title) for rule in patterns.rules().values()]
    found = {item.value: item for item in (*findings, *rules, *optimisations(context, argument, ""))}
    return [item for name, item in sorted(found.items()) if name.startswith(incomplete)]
