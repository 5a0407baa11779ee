from hotlap.catalog.entry import Entry, Stage, within
from hotlap.records.plan import Risk

ENTRY = Entry(
    code="C102",
    title="cuDNN tries its convolution algorithms and keeps the fastest",
    risk=Risk.ROUNDING,
    apply=within(__name__, "apply"),
    detect=within(__name__, "detect"),
    device="cuda",
    stage=Stage.SETTINGS,
    prepares=0.5,  # many algorithms for each convolution
    alone=True,
)
