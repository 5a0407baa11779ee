"""The kinds of entries on the tape, which the seams write at the cost of one tuple each and the Story reads later."""

from __future__ import annotations

from hotlap.records.observation import BACKWARD, COPY, DATA, FORWARD, GARBAGE, OPTIMIZER, PHASES, SYNC

# Kinds come in pairs: the start of a call is even, its end is the odd number after it.
ITERATE, ITERATED, FETCH, FETCHED, STEP, STEPPED, CALL, CALLED = range(8)
DIFFERENTIATE, DIFFERENTIATED, SYNC_BEGINS, SYNC_ENDS, COPY_BEGINS, COPY_ENDS, COLLECT, COLLECTED = range(8, 16)
SPAN, SPANNED, SCALER_STEPS, SCALER_STEPPED, PAUSE, WATCH = range(16, 22)
LOSS, DETAIL, MARK = range(22, 25)

PHASE_OF = {
    kind: PHASES.index(phase)
    for kind, phase in (
        (ITERATE, DATA),
        (FETCH, DATA),
        (STEP, OPTIMIZER),
        (CALL, FORWARD),
        (DIFFERENTIATE, BACKWARD),
        (SYNC_BEGINS, SYNC),
        (COPY_BEGINS, COPY),
        (COLLECT, GARBAGE),
    )
}
