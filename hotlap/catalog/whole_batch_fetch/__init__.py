from hotlap.catalog.entry import Entry, Stage, When, within
from hotlap.records.plan import Risk

ENTRY = Entry(
    code="D106",
    title="Batches of in-memory data fetched with one index per tensor",
    risk=Risk.EXACT,
    apply=within(__name__, "apply"),
    detect=within(__name__, "detect"),
    stage=Stage.LOADER,
    after=("loader-pinned",),
    reach=0.5,
    when=When.LOADER,
)
