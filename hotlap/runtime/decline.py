"""How an entry declines to change the program."""

from __future__ import annotations

from hotlap.records.plan import Status


class EntryDeclined(Exception):
    """Raised with the reason; `status` says whether the entry must not or could not change anything."""

    def __init__(self, why: str, status: Status = Status.REFUSED) -> None:
        super().__init__(why)
        self.status = status


def no_effect(why: str) -> EntryDeclined:
    """Return the error for an entry that finds nothing to change."""
    return EntryDeclined(why, Status.NO_EFFECT)
