"""The command `hotlap`, also where the program's PYTHONPATH has a module of that name in front of ours."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path


def main() -> None:
    package = Path(__file__).parent / "hotlap"
    places = [str(package)]
    spec = importlib.util.spec_from_file_location("hotlap", package / "__init__.py", submodule_search_locations=places)
    assert spec is not None
    assert spec.loader is not None
    sys.modules["hotlap"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["hotlap"])
    from hotlap import cli

    cli.main()
