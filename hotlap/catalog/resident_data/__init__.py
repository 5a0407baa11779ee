from hotlap.catalog.entry import Entry, OneOf, Stage, When, within
from hotlap.records.plan import Risk

ENTRY = Entry(
    code="D110",
    title="Dataset kept in memory, each batch made by one gather",
    risk=Risk.EXACT,
    apply=within(__name__, "apply"),
    detect=within(__name__, "detect"),
    values=OneOf(("device", "host")),
    stage=Stage.DATASET,
    after=("sample-cache",),
    reach=0.9,
    when=When.LOADER,
)
