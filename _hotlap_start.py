"""The command `hotlap`, also where the program's PYTHONPATH has a module of that name in front of ours."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path


def main() -> None:
    packages = [Path(place) / "hotlap" for place in sys.path]
    ours = next(one for one in packages if (one / "patch" / "boot" / "sitecustomize.py").exists())
    spec = importlib.util.spec_from_file_location(
        "hotlap", ours / "__init__.py", submodule_search_locations=[str(ours)]
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules["hotlap"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["hotlap"])
    from hotlap import cli

    cli.main()
