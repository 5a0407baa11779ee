from hotlap.catalog.entry import Entry, Stage, within
from hotlap.records.plan import Risk

ENTRY = Entry(
    code="C116",
    title="Batch normalisation and the activation after it in one pass",
    risk=Risk.ROUNDING,
    apply=within(__name__, "apply"),
    detect=within(__name__, "detect"),
    device="cuda",
    stage=Stage.MODEL,
    after=("recurrent-kernels",),
    reach=0.2,
    prepares=0.5,  # its kernels are compiled
    alone=True,
)
