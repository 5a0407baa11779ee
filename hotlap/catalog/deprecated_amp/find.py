"""torch.cuda.amp and torch.cpu.amp, which torch.amp replaces."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.frequency.heat import Heat, Side
from hotlap.analysis.parse.positions import position_of
from hotlap.analysis.queries.code import Code, last_name, spread
from hotlap.analysis.queries.rule import Found
from hotlap.records.scan_finding import Applicability, Confidence, Frequency

WORDS = ("cuda.amp", "cpu.amp", "cuda import amp")
SEVERITY = "low"
PREVIEW = True
_NAMES = ("autocast", "GradScaler")
_HEAT = Heat(Frequency.ONCE, Confidence.HIGH, Side.TRAIN)


def find(code: Code) -> Iterator[Found]:
    yield from _uncalled(code)
    for call in code.calls(*_aliases(code)):
        name = code.full_name(call.func)
        device, short = _parts(name)
        if not short or _is_fallback(code, call.func):
            continue
        hints = _hints(code, call, device, short)
        yield Found(
            call,
            f"{name} is deprecated",
            f'use torch.amp.{short}("{device}")',
            Applicability.SAFE if hints else Applicability.DISPLAY_ONLY,
            _HEAT,
            hints=hints,
        )


def _uncalled(code: Code) -> Iterator[Found]:
    """Yield uses without a call: `context = torch.cuda.amp.autocast if amp else nullcontext`."""
    for node in code.nodes(ast.Attribute, ast.Name):
        parent = code.parent(node)
        if isinstance(parent, ast.Attribute) or (isinstance(parent, ast.Call) and parent.func is node):
            continue
        name = code.full_name(node)
        device, short = _parts(name)
        read = isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load)
        if short and read and not _is_fallback(code, node):  # type: ignore[arg-type]
            yield Found(
                node,
                f"{name} is deprecated",
                f'use partial(torch.amp.{short}, "{device}")',
                Applicability.DISPLAY_ONLY,
                _HEAT,
            )


def _aliases(code: Code) -> set[str]:
    """Return the names by which this file calls them."""
    found = set(_NAMES)
    for node in code.nodes(ast.ImportFrom):
        assert isinstance(node, ast.ImportFrom)
        found |= {alias.asname for alias in node.names if alias.asname and alias.name in _NAMES}
    return found


def _parts(name: str) -> tuple[str, str]:
    """Return the device and the function, or two empty strings if the name is not a deprecated one."""
    parts = name.split(".")
    deprecated = parts[0] == "torch" and len(parts) >= 4 and parts[1] in ("cuda", "cpu") and parts[2] == "amp"
    return (parts[1], parts[-1]) if deprecated and parts[-1] in _NAMES else ("", "")


def _is_fallback(code: Code, name: ast.expr) -> bool:
    """Tell whether the name is also imported from `torch` or `torch.amp`: the deprecated one is for old versions."""
    return isinstance(name, ast.Name) and any(
        isinstance(node, ast.ImportFrom)
        and node.module in ("torch", "torch.amp")
        and any((alias.asname or alias.name) == name.id for alias in node.names)
        for node in code.nodes(ast.ImportFrom)
    )


def _hints(code: Code, call: ast.Call, device: str, short: str) -> dict[str, str]:
    if spread(call) or any(word.arg in ("device_type", "device") for word in call.keywords):
        return {}
    if short == "autocast" and len(call.args) > 1:
        return {}
    hints = {"device": device, "short": short, "import": ""}
    if isinstance(call.func, ast.Attribute):
        return hints if ast.unparse(call.func).startswith("torch.") else _through_module(code, hints)
    imported = _import_of(code, call.func)
    if imported is None or not _all_called(code, imported) or "hotlap: ignore" in code.text:
        return {}
    return {**hints, "import": position_of(imported, code.lines)}


def _through_module(code: Code, hints: dict[str, str]) -> dict[str, str]:
    """Allow the fix of `amp.autocast()` (`from torch.cuda import amp`) only where `torch` itself is imported."""
    plain = any(
        alias.name == "torch" and alias.asname is None
        for node in code.nodes(ast.Import)
        if isinstance(node, ast.Import)
        for alias in node.names
    )
    return hints if plain else {}


def _import_of(code: Code, name: ast.expr) -> ast.ImportFrom | None:
    """Return the import that the name comes from, if there is exactly one."""
    found = [
        node
        for node in code.nodes(ast.ImportFrom)
        if isinstance(node, ast.ImportFrom)
        and node.module in ("torch.cuda.amp", "torch.cpu.amp")
        and any((alias.asname or alias.name) == last_name(name) for alias in node.names)
    ]
    return found[0] if len(found) == 1 else None


def _all_called(code: Code, imported: ast.ImportFrom) -> bool:
    """Tell whether every imported name is a known one and is only ever called, so that all uses can change together."""
    for alias in imported.names:
        if alias.name not in _NAMES:
            return False
        local = alias.asname or alias.name
        for node in code.nodes(ast.Name):
            if isinstance(node, ast.Name) and node.id == local:
                parent = code.parent(node)
                if not (isinstance(parent, ast.Call) and parent.func is node) or spread(parent):
                    return False
                if alias.name == "autocast" and len(parent.args) > 1:
                    return False
    return True
