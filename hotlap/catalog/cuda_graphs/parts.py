"""What the other classes of this entry see of `Graphs`."""

from __future__ import annotations

from typing import Any, Protocol

from hotlap.catalog.cuda_graphs.graphed_module import GraphedRoot
from hotlap.catalog.cuda_graphs.habits import Habits
from hotlap.catalog.cuda_graphs.recorder import Recorder
from hotlap.runtime.site import Site


class Whole(Protocol):
    site: Site
    torch: Any
    recorder: Recorder
    habits: Habits

    @property
    def active(self) -> bool:
        """Whether a model is replayed."""
        ...

    @property
    def graphed(self) -> GraphedRoot | None: ...

    def parameters_of_root(self, given: Any) -> list[Any] | None:
        """Return the parameters in a list if `given` is an unread `parameters()` generator of the root, else None."""
        ...

    def tell(self) -> None: ...
