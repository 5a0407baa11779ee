"""Keeping out of torch.compile's sight.

Dynamo reads the Python it compiles: a patched method would be traced and break the graph. While it compiles, every
patch steps aside, and our own files are never compiled. Nothing here imports Dynamo: that alone takes a second.
"""

from __future__ import annotations

from typing import Any

import wrapt

from hotlap.patch.ledger import Ledger

OUR_ROOMS = ("hotlap.patch", "hotlap.observe")


def keep_out(ledger: Ledger) -> None:
    """Hide this ledger's patches whenever Dynamo compiles, now or once it is imported."""

    def dynamo_imported(_: Any) -> None:
        if not ledger.closed:
            _hide_while_compiling(ledger)

    wrapt.register_post_import_hook(dynamo_imported, "torch._dynamo")


def _hide_while_compiling(ledger: Ledger) -> None:
    from torch._dynamo import trace_rules
    from torch._dynamo.callback import callback_handler as handler

    def starts(*_: Any) -> None:
        ledger.hide()

    def ends(*_: Any) -> None:
        ledger.show()

    directories = list(trace_rules.SKIP_DIRS)
    for room in OUR_ROOMS:
        trace_rules.add(room)
    added = trace_rules.SKIP_DIRS[len(directories) :]
    handler.register_start_callback(starts)
    handler.register_end_callback(ends)

    def undo() -> None:
        handler.remove_start_callback(starts)
        handler.remove_end_callback(ends)
        for directory in added:
            trace_rules.SKIP_DIRS.remove(directory)
        trace_rules._recompile_re()

    ledger.later(undo)
