"""Packages that only some verbs need, asked for before anything is run."""

from __future__ import annotations

from importlib.util import find_spec

from hotlap.errors import PackageMissing


def need_scipy(verb: str) -> None:
    missing = [name for name in ("numpy", "scipy") if find_spec(name) is None]
    if missing:
        raise PackageMissing(f"{verb} needs {' and '.join(missing)}; type: pip install 'hotlap[tune]'")
