"""Run autograd in the training thread where only one GPU is in use.

Torch runs a backward on a GPU in a thread of that GPU's own, so that several GPUs can work at once. With one GPU that
is pure cost: the training thread hands over, sleeps, and is woken at the end.
"""

from __future__ import annotations

import threading
from typing import Any

from hotlap.runtime.site import Site


def apply(site: Site) -> None:
    Backwards(site).begin()


class Backwards:
    """Sets torch's switch, which applies only to the thread that sets it: the one that trains."""

    def __init__(self, site: Site) -> None:
        self._site, self._torch = site, site.torch
        self._devices: set[str] = set()
        self._thread: int | None = None

    def begin(self) -> None:
        self._site.when_root(self._known)
        self._site.ledger.later(self._put_back)

    def _known(self, root: Any) -> None:
        self._devices |= {str(tensor.device) for tensor in (*root.parameters(), *root.buffers())}
        if len(self._devices) > 1:
            self._put_back()
            self._site.no_effect(f"the training is on {', '.join(sorted(self._devices))}, which work in parallel")
        elif not next(iter(self._devices), "").startswith("cuda"):
            self._site.no_effect("the model is not on a GPU: its backward already runs in the training thread")
        elif self._thread is None:
            self._switch(root)

    def _switch(self, root: Any) -> None:
        autograd = self._torch.autograd
        if not self._torch._C._is_multithreading_enabled():
            self._site.no_effect("the program has already switched autograd's threads off")
            return
        autograd.set_multithreading_enabled(False)
        self._thread = threading.get_ident()
        self._site.applied(f"backward of {type(root).__name__} without a second thread")

    def _put_back(self) -> None:
        if self._thread == threading.get_ident():
            self._torch.autograd.set_multithreading_enabled(True)
        self._thread = None
