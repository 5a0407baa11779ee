from hotlap.catalog.entry import Entry, Stage, within
from hotlap.records.plan import Risk

ENTRY = Entry(
    code="C111",
    title="Forward, backward and optimizer step replayed as CUDA graphs",
    risk=Risk.ROUNDING,
    apply=within(__name__, "apply"),
    detect=within(__name__, "detect"),
    device="cuda",
    stage=Stage.CAPTURED,  # what changes the model or its inputs comes before
    conflicts=frozenset({"compile"}),
    reach=0.8,
    prepares=0.8,
    retained=True,
    alone=True,
)
