from hotlap.catalog.entry import Entry, OneOf, When, within
from hotlap.records.plan import Risk

ENTRY = Entry(
    code="D110",
    title="The dataset kept in memory, a batch one gather",
    risk=Risk.EXACT,
    apply=within(__name__, "apply"),
    detect=within(__name__, "detect"),
    values=OneOf(("device", "host")),
    order=24,
    reach=0.9,
    when=When.LOADER,
)
