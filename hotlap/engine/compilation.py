"""A compiled loss: one graph where the compiler can see all of it, else the pieces that it falls into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hotlap.engine.errors import CompileFailed
from hotlap.engine.update import Found, LossOf

AUTOTUNED = "max-autotune-no-cudagraphs"  # the graph of the whole step is the engine's own


class CompiledLoss:
    """Compiled for the one shape of full batches; the shorter last batch runs uncompiled.

    Where it is not one graph `say` gets the reason, and with `whole` that is an error.
    """

    def __init__(
        self, loss_of: LossOf, say: Callable[[str], None], whole: bool = False, autotuned: bool = False
    ) -> None:
        self.loss_of, self.say, self.whole = loss_of, say, whole
        self.options: dict[str, Any] = {"dynamic": False} | ({"mode": AUTOTUNED} if autotuned else {})
        self.compiled: LossOf = torch.compile(loss_of, fullgraph=True, **self.options)
        self.in_pieces = False

    def __call__(self, item: Any) -> Found:
        if self.in_pieces:
            return self.compiled(item)
        try:
            return self.compiled(item)
        except Exception as error:
            if (why := reason_of(error)) is None:
                raise
            if self.whole:
                raise CompileFailed(
                    f'compile="fullgraph", but the step is not one graph: {why}; change that, or use compile="on"'
                ) from error
            self.say(f"the compiler does not see the step as one graph, but in pieces: {why}")
        self.in_pieces = True
        self.compiled = torch.compile(self.loss_of, **self.options)
        return self.compiled(item)


def reason_of(error: Exception) -> str | None:
    """Return what the compiler could not follow, before anything was computed, and in which line if it knows that.

    For an error of the program itself return None.
    """
    if isinstance(error, torch._dynamo.exc.FailOnRecompileLimitHit):
        return "batches have too many shapes"
    if not isinstance(error, torch._dynamo.exc.TorchDynamoException):
        return None
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    where = [line for line in lines if line.startswith("File ")]
    return (lines or [type(error).__name__])[0][:160] + (f" ({where[-1]})" if where else "")
