"""How tests change what is not handed in: each fixture undoes at the end what was changed.

A stand-in that is none of these is given to `monkeypatch`, next to what it stands in for.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import pytest


class Call(NamedTuple):
    """What a function was called with and what it returned."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    returned: Any


@pytest.fixture
def constants(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets constants of a module or a class: `constants(proof, EVERY=1)`."""

    def set_them(owner: Any, **values: Any) -> None:
        owner = importlib.import_module(owner) if isinstance(owner, str) else owner
        for name, value in values.items():
            assert name.isupper(), f"{name} is no constant"
            monkeypatch.setattr(owner, name, value)

    return set_them


@pytest.fixture
def spied(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str], list[Call]]:
    """Lists the calls of a function that does what it always does: `calls = spied(torch, "relu")`."""

    def watch(owner: Any, name: str) -> list[Call]:
        calls: list[Call] = []
        original = getattr(owner, name)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            returned = original(*args, **kwargs)
            calls.append(Call(args, kwargs, returned))
            return returned

        monkeypatch.setattr(owner, name, call)
        return calls

    return watch


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lets functions always return a value, or raise it if it is an exception: `answering(torch.cuda, device_count=0)`.

    What the function itself would not take is refused.
    """

    def answer(owner: Any, **answers: Any) -> None:
        owner = importlib.import_module(owner) if isinstance(owner, str) else owner
        for name, value in answers.items():
            monkeypatch.setattr(owner, name, _answer(getattr(owner, name), value))

    return answer


@pytest.fixture
def command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Types `hotlap …` and returns the exit code, stdout and stderr."""
    import hotlap.cli

    def type_it(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["hotlap", *words])
        with pytest.raises(SystemExit) as ended:
            hotlap.cli.main()
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return type_it


def _answer(original: Any, value: Any) -> Callable[..., Any]:
    signature = None
    with suppress(TypeError, ValueError):  # functions written in C may have none
        signature = inspect.signature(original)

    def call(*args: Any, **kwargs: Any) -> Any:
        if signature is not None:
            signature.bind(*args, **kwargs)
        if isinstance(value, BaseException):
            raise value
        return value

    return call
