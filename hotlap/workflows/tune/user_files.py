"""Protects the user's files from the first process of a tune on."""

from __future__ import annotations

from hotlap import store
from hotlap.trial.keeper import Keeper, folders_at_stake
from hotlap.workflows.tune.book import Watcher


class UserFiles:
    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self.keeper: Keeper | None = None

    def begin(self, run: store.Run, command: tuple[str, ...]) -> Keeper:
        if self.keeper is None:
            runs = run.folder.parent
            ours = (runs, runs.parent / "plans")
            self.keeper = Keeper(run.folder / "files", folders_at_stake(command), self._watcher.caution, ours)
        return self.keeper

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(self.keeper.lines) if self.keeper is not None else ()

    def close(self) -> None:
        if self.keeper is not None:
            self.keeper.close()
