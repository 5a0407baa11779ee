from hotlap.catalog.entry import Entry, Stage, When, within
from hotlap.records.plan import Risk

ENTRY = Entry(
    code="D120",
    title="The next batch copied to the device while this step runs",
    risk=Risk.EXACT,
    apply=within(__name__, "apply"),
    detect=within(__name__, "detect"),
    device="cuda",
    stage=Stage.BATCH,
    reach=0.4,
    when=When.LOADER,
)
