from hotlap.catalog.entry import Entry, within
from hotlap.records.plan import Risk

ENTRY = Entry(
    code="H104",
    title="Profiler marks skipped while no profiler is running",
    risk=Risk.EXACT,
    apply=within(__name__, "apply"),
    detect=within(__name__, "detect"),
    reach=0.9,
)
