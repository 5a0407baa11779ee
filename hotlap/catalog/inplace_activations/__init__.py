from hotlap.catalog.entry import Entry, Stage, within
from hotlap.records.plan import Risk

ENTRY = Entry(
    code="C108",
    title="Activations overwrite their input where nobody else can see it",
    risk=Risk.EXACT,
    apply=within(__name__, "apply"),
    detect=within(__name__, "detect"),
    stage=Stage.MODEL,
    after=("autocast",),
    conflicts=frozenset({"activation-checkpointing"}),  # it would recompute from an overwritten input
    automatic=False,  # it saves memory; whether it saves time is for a tune to measure
    reach=0.05,
)
