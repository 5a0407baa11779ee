from hotlap.catalog.entry import Entry, Stage, When, WholeNumber, within
from hotlap.records.plan import Risk

ENTRY = Entry(
    code="D101",
    title="Worker processes load samples while the model trains",
    risk=Risk.ROUNDING,
    automatic=False,  # its processes see changes to the dataset an epoch later: requested or proven
    apply=within(__name__, "apply"),
    detect=within(__name__, "detect"),
    values=WholeNumber(1, 512),
    tries=within(__name__, "detect", "tries"),
    stage=Stage.LOADER,
    after=("whole-batch-fetch",),  # the last to subscribe runs first, so the others see the workers set here
    reach=0.5,
    when=When.LOADER,
)
