from hotlap.catalog.entry import Entry, Stage, When, within
from hotlap.records.plan import Risk

ENTRY = Entry(
    code="D104",
    title="Batches loaded into page-locked memory",
    risk=Risk.EXACT,
    apply=within(__name__, "apply"),
    detect=within(__name__, "detect"),
    device="cuda",
    stage=Stage.LOADER,
    after=("loader-prefetch",),
    when=When.LOADER,
)
