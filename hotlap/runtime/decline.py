"""How an entry says that it leaves the program as it is."""

from __future__ import annotations

from hotlap.records.plan import Status


class EntryDeclined(Exception):
    """The text says why. `status` says whether the entry must not, or could not change anything."""

    def __init__(self, why: str, status: Status = Status.REFUSED) -> None:
        super().__init__(why)
        self.status = status


def no_effect(why: str) -> EntryDeclined:
    """Nothing here that the entry could change."""
    return EntryDeclined(why, Status.NO_EFFECT)
