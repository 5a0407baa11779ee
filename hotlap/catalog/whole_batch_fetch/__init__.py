from hotlap.catalog.entry import Entry, When, within
from hotlap.records.plan import Risk

ENTRY = Entry(
    code="D106",
    title="A batch of in-memory data is one index per tensor",
    risk=Risk.EXACT,
    apply=within(__name__, "apply"),
    detect=within(__name__, "detect"),
    order=35,
    reach=0.5,
    when=When.LOADER,
)
