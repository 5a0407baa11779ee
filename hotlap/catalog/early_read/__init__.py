from hotlap.catalog.entry import Entry, within
from hotlap.records.plan import Risk

ENTRY = Entry(
    code="H110",
    title="The loss is read without a wait for the backward pass",
    risk=Risk.EXACT,
    apply=within(__name__, "apply"),
    detect=within(__name__, "detect"),
    device="cuda",
    reach=0.5,
    automatic=True,
)
