"""Looks at a few backward calls and says so when anomaly mode is on. Changes nothing: it is the user's debugging."""

from __future__ import annotations

from typing import Any

from hotlap.runtime.site import Site

LOOK = 4  # backward calls

ADVICE = (
    "autograd's anomaly mode is on and slows every operation; once you are done debugging remove "
    "torch.autograd.set_detect_anomaly(True) or detect_anomaly()"
)


def apply(site: Site) -> None:
    looked = 0

    def look(*_: Any) -> None:
        nonlocal looked
        looked += 1
        if site.torch.is_anomaly_enabled():
            site.refused(ADVICE)
            site.close()
        elif looked == LOOK:
            site.no_effect("anomaly mode is off")
            site.close()

    site.before(site.seams.backward, look)
