from hotlap.catalog.entry import Entry, Stage, When, within
from hotlap.records.plan import Risk

ENTRY = Entry(
    code="D111",
    title="Each sample fetched once and cached",
    risk=Risk.EXACT,
    apply=within(__name__, "apply"),
    detect=within(__name__, "detect"),
    stage=Stage.DATASET,
    after=("loader-persistent",),  # before resident-data, which then wraps it and gets each loader first
    reach=0.6,
    when=When.LOADER,
)
