from hotlap.catalog.entry import Entry, Stage, WholeNumber, within
from hotlap.records.plan import Risk

ENTRY = Entry(
    code="H102",
    title="Full garbage collections wait until between two epochs",
    risk=Risk.ROUNDING,  # no number changes, only what the program can observe
    apply=within(__name__, "apply"),
    detect=within(__name__, "detect"),
    values=WholeNumber(1, 1_000_000),
    stage=Stage.LAST,
    after=("loader-start-method",),  # its site closes first: it searches objects, and frozen ones are hidden
    reach=0.7,
)
