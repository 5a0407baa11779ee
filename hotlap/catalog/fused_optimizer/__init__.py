from hotlap.catalog.entry import Entry, Stage, within
from hotlap.records.plan import Risk

ENTRY = Entry(
    code="C106",
    title="One kernel for the whole optimizer step",
    risk=Risk.ROUNDING,
    apply=within(__name__, "apply"),
    detect=within(__name__, "detect"),
    stage=Stage.MODEL,  # before entries that check whether a step is fused
    reach=0.6,
    alone=True,
)
