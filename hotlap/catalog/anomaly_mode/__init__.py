from hotlap.catalog.entry import Entry, Stage, When, within
from hotlap.records.plan import Risk

ENTRY = Entry(
    code="H107",
    title="Anomaly mode left on is reported",
    risk=Risk.EXACT,
    apply=within(__name__, "apply"),
    detect=within(__name__, "detect"),
    stage=Stage.LAST,
    when=When.START,
)
