from hotlap.catalog.entry import Entry, Stage, within
from hotlap.records.plan import Risk

ENTRY = Entry(
    code="C101",
    title="Float32 matrix products computed in TF32",
    risk=Risk.NUMERIC,
    apply=within(__name__, "apply"),
    detect=within(__name__, "detect"),
    device="cuda",
    stage=Stage.SETTINGS,
    reach=0.4,
    alone=True,
)
