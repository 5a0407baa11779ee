"""Every warning about a measurement, with advice."""

from __future__ import annotations

from enum import Enum


class Caution(Enum):
    WARMUP_NOT_SETTLED = "step times were still changing when measuring began; give a larger --warmup N"
    FEW_STEPS = "fewer than 10 steps were measured, so the figures are rough; try --steps 50 or --max-seconds 600"
    NOISY = "step times vary by more than half of their median; close other programs or measure more steps"
    BUSY_MACHINE = (
        "other programs used the same cores meanwhile, so steps took longer than they need to; end them first"
    )
    EVALUATION_INSIDE = "the window includes an evaluation, whose time is shown separately"
    LOSS_UNSEEN = "no loss was seen: backward was called in a way that hotlap does not observe"
    ROOT_UNSEEN = "no module owning the optimizer's parameters was called, so forward time is part of the rest"
    STOP_IGNORED = "the program caught the exception that asked it to stop, so it was ended by a signal"
    OTHER_TRAINERS = "several processes trained independently; the one with the most steps is shown"
    OWN_ERROR = (
        "a part of hotlap failed and was disabled; the training continued (see hotlap-errors.txt in the run folder)"
    )
    SKIPPED_STEPS = "the gradient scaler skipped optimizer steps, which are counted as steps"
