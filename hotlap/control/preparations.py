"""What entries prepare beside the training, so that their trial need not wait for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hotlap.catalog import entries
from hotlap.runtime.site import Site


class Preparations:
    def __init__(self, sites: Mapping[str, Site]) -> None:
        self._sites = sites
        for site in sites.values():
            site.on_applied, site.on_withdrawn = lambda outcome: None, lambda site: None

    def begin(self, is_possible: Callable[[Site], bool]) -> None:
        for name, site in self._sites.items():
            if (ahead := entries()[name].ahead) is not None and is_possible(site):
                ahead(site)

    def is_over(self, name: str) -> bool:
        """Return whether nothing is being prepared for this entry."""
        return name not in self._sites or not self._sites[name].coming

    def end(self) -> None:
        for site in self._sites.values():
            site.close()

    def fall_silent(self) -> None:
        for site in self._sites.values():
            site.closed = True
