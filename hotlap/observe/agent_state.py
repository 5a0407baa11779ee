"""What the agent has learned about its process so far; other modules add to it and report it."""

from __future__ import annotations

from pathlib import Path
from threading import get_ident
from time import perf_counter_ns
from typing import Any

from hotlap.observe.loaders import Loaders
from hotlap.observe.look import Look
from hotlap.observe.losses import Losses
from hotlap.observe.models import describe_optimizer
from hotlap.observe.story import Story
from hotlap.observe.tally import Tally
from hotlap.observe.window import WarmupDetector
from hotlap.patch.roots import Roots
from hotlap.patch.seams import Entry, Seams
from hotlap.records.progress import STARTING
from hotlap.records.session import Session


class AgentState:
    def __init__(self, torch: Any, session: Session, seams: Seams) -> None:
        self.torch, self.session, self.seams = torch, session, seams
        self.folder = Path(session.folder)
        self.losses = Losses(torch)
        self.loaders = Loaders()
        self.tally = Tally()
        self.story = Story(perf_counter_ns(), get_ident(), self.loaders, self.losses, self.tally)
        self.entries: list[Entry] = []  # the tape
        self.roots = Roots(seams)
        self.rank, self.world_size = 0, 1
        self.warmup = WarmupDetector(session.warmup)
        self.optimizers: dict[int, Any] = {}
        self.optimizers_made = 0
        self.parameters: list[Any] = []  # the trained ones, as the first step shows
        self.on_cuda = False
        self.autocast: str | None = None
        self.grad_scaler = False
        self.look = Look()
        self.state = STARTING
        self.ending = False

    def optimizer_records(self) -> tuple[Any, ...]:
        return tuple(describe_optimizer(optimizer) for optimizer in self.optimizers.values())
