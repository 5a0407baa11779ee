"""The training loop. Nothing waits for the device except where a comment says HOST SYNC."""

from __future__ import annotations

from hotlap.engine.run import Run


def train(run: Run) -> None:
    for phase, epochs in run.phases_left():
        run.enter(phase, epochs)  # what is trained; the step is captured anew
        for epoch in range(run.place.epoch, epochs.stop):
            run.begin(epoch)  # order and learning rates, drawn on the device or sent to it, not waited for
            for window in run.windows_left():
                run.steps(window)  # the whole step: one graph replay, where it could be captured
                if run.due(window):
                    run.pause(window)  # losses that have arrived; HOST SYNC only to write a checkpoint within the epoch
            losses = run.read_losses()  # HOST SYNC: the epoch's only one, once all its steps are done
            run.end(epoch, losses)  # HOST SYNC: one, to read the scores; the checkpoint is written by another thread
            if run.is_over:
                return
