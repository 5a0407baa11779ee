"""Limits how often tqdm draws its bars, even if the loop requests it with every step."""

from __future__ import annotations

import inspect
import time
import weakref
from typing import Any

from hotlap.patch.imports import when_imported
from hotlap.runtime.site import Original, Site

SECONDS = 1
DRAWING = ("set_postfix", "set_postfix_str", "set_description", "set_description_str")


def apply(site: Site) -> None:
    site.no_effect("the program has no tqdm bar")
    rate = Rate(site, float(site.value or SECONDS))
    when_imported("tqdm.std", rate.imported)


class Rate:
    def __init__(self, site: Site, seconds: float) -> None:
        self._site, self._seconds = site, seconds
        self._drawn: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()

    def imported(self, module: Any) -> None:
        if self._site.closed:
            return
        bar = module.tqdm
        signature = inspect.signature(bar.__init__)
        default = signature.parameters["mininterval"].default

        def make(original: Original, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            given = signature.bind_partial(instance, *args, **kwargs).arguments
            if given.get("file") is not None or given.get("mininterval", default) != default:
                return original(*args, **kwargs)
            if "mininterval" not in given:
                kwargs = {**kwargs, "mininterval": self._seconds}
            outcome = original(*args, **kwargs)
            if instance.disable:  # disable=None depends on whether the file is a terminal
                self._site.no_effect("the program's bars are disabled")
            else:
                self._drawn[instance] = float("-inf")
                self._site.applied(f"tqdm draws every {self._seconds:g} s")
            return outcome

        self._site.replace(bar, "__init__", make)
        for name in DRAWING:
            self._site.replace(bar, name, self._seldom(inspect.signature(getattr(bar, name))))

    def _seldom(self, signature: inspect.Signature) -> Any:
        """Return a replacement that always updates the text but draws only when the bar is due."""

        def change(original: Original, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            given = signature.bind_partial(instance, *args, **kwargs)
            if not given.arguments.get("refresh", True) or instance not in self._drawn:
                return original(*args, **kwargs)
            now = time.monotonic()
            if now - self._drawn[instance] >= self._seconds:
                self._drawn[instance] = now
                return original(*args, **kwargs)
            given.arguments["refresh"] = False
            return original(*given.args[1:], **given.kwargs)

        return change
