from hotlap.catalog.entry import Entry, within
from hotlap.records.plan import Risk

ENTRY = Entry(
    code="C114",
    title="Backward runs in the thread that called it",
    risk=Risk.ROUNDING,  # it changes no number, but the thread in which hooks of the program run
    apply=within(__name__, "apply"),
    detect=within(__name__, "detect"),
    device="cuda",
    reach=0.5,
)
