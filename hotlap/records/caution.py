"""Every warning hotlap can give, with what to do about it."""

from __future__ import annotations

from enum import Enum


class Caution(Enum):
    WARMUP_NOT_SETTLED = "step times were still changing when measuring began; try --warmup N with a larger N"
    FEW_STEPS = "fewer than 10 steps were measured; the figures are rough: try --steps 50 or --max-seconds 600"
    NOISY = "step times vary by more than half of their median; close other programs or measure longer"
    EVALUATION_INSIDE = "the window holds an evaluation; its time is shown as a share of its own"
    LOSS_UNSEEN = "no loss was seen: backward was called through a path hotlap does not watch"
    ROOT_UNSEEN = "no module owning the optimizer's parameters was called, so forward time is part of the rest"
    STOP_IGNORED = "the program caught hotlap's request to stop and was ended by a signal"
    OTHER_TRAINERS = "several processes trained independently; the one with most steps is shown"
    OWN_ERROR = "a part of hotlap failed and was switched off; the training went on (see hotlap-errors.txt in the run)"
    SKIPPED_STEPS = "the gradient scaler skipped optimizer steps; they are counted as steps"
