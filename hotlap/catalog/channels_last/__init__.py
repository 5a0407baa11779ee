from hotlap.catalog.entry import Entry, Stage, within
from hotlap.records.plan import Risk

ENTRY = Entry(
    code="C105",
    title="Convolutions on memory with the channels last",
    risk=Risk.ROUNDING,
    apply=within(__name__, "apply"),
    detect=within(__name__, "detect"),
    stage=Stage.MODEL,
    after=("activation-checkpointing",),
    reach=0.1,
    prepares=0.5,  # other algorithms for each convolution
    alone=True,
)
