"""The end of a process: nothing of the program's may be held by us any longer.

Python frees what a program has left in its modules at the very end: a file that it never closed is written to its end
then, and finalisers run. What is reachable from one of our modules is not freed. So what they remember is forgotten:
each cache at the top of a module has a `cache_clear`.
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
