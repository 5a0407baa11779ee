from hotlap.catalog.entry import Entry, Stage, within
from hotlap.records.plan import Risk

ENTRY = Entry(
    code="C115",
    title="Recurrent layers with their weights kept on the chip",
    risk=Risk.ROUNDING,
    apply=within(__name__, "apply"),
    detect=within(__name__, "detect"),
    device="cuda",
    stage=Stage.MODEL,
    after=("recurrent",),
    reach=0.6,
    ahead=within(__name__, "ahead"),
    prepares=0.4,  # measured once compiled
    retained=True,
    alone=True,
)
