from hotlap.catalog.entry import Entry, Stage, When, within
from hotlap.records.plan import Risk

ENTRY = Entry(
    code="C112",
    title="Device memory in segments that grow",
    risk=Risk.EXACT,
    apply=within(__name__, "apply"),
    detect=within(__name__, "detect"),
    environment=within(__name__, "apply", "environment"),
    device="cuda",
    stage=Stage.PROCESS,
    when=When.START,
)
