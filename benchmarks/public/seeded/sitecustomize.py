"""Seeds every process of a program from outside, in all arms alike: few programs seed themselves."""

from __future__ import annotations

import importlib.abc
import importlib.util
import random
import sys
from importlib.machinery import ModuleSpec
from typing import Any

SEEDS = {"torch": lambda module: module.manual_seed(0), "numpy": lambda module: module.random.seed(0)}


class Seeding(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name not in SEEDS:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            usual = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                usual(module)
                SEEDS[name](module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


random.seed(0)
sys.meta_path.insert(0, Seeding())
