"""The end of a process, when our modules must release every object of the program.

At the very end Python frees what a program has left in its modules: files that it never closed are flushed, and
finalisers run. Nothing reachable from one of our modules would be freed, so all our caches are cleared: each one at
the top of a module has a `cache_clear`.
"""

from __future__ import annotations

import sys

PACKAGE = __name__.partition(".")[0]


def forget_the_program() -> None:
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == PACKAGE:
            for value in list(vars(module).values()):
                if hasattr(value, "cache_clear") and not isinstance(value, type):
                    value.cache_clear()
