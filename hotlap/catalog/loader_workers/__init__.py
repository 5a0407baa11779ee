from hotlap.catalog.entry import Entry, Stage, When, WholeNumber, within
from hotlap.records.plan import Risk

ENTRY = Entry(
    code="D101",
    title="Samples are made by other processes while the model trains",
    risk=Risk.ROUNDING,
    automatic=False,  # it starts processes, which see a change of the dataset an epoch later: asked for, or proven
    apply=within(__name__, "apply"),
    detect=within(__name__, "detect"),
    values=WholeNumber(1, 512),
    tries=within(__name__, "detect", "tries"),
    stage=Stage.LOADER,
    after=("whole-batch-fetch",),  # the last to subscribe is asked first: the others see the workers given here
    reach=0.5,
    when=When.LOADER,
)
