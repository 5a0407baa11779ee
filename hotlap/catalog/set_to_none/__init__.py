from hotlap.catalog.entry import Entry, Stage, When, within
from hotlap.records.plan import Risk

ENTRY = Entry(
    code="H108",
    title="Gradients written to zero instead of dropped are reported",
    risk=Risk.EXACT,
    apply=within(__name__, "apply"),
    detect=within(__name__, "detect"),
    stage=Stage.LAST,
    after=("anomaly-mode",),
    when=When.START,
)
