from hotlap.catalog.entry import Entry, OneOf, Stage, within
from hotlap.records.plan import Risk

ENTRY = Entry(
    code="C109",
    title="Activations of repeated blocks computed again instead of kept",
    risk=Risk.ROUNDING,
    apply=within(__name__, "apply"),
    detect=within(__name__, "detect"),
    values=OneOf(("always", "short")),
    stage=Stage.MODEL,
    after=("inplace-activations",),
    conflicts=frozenset({"inplace-activations", "compile", "cuda-graphs"}),
    automatic=False,  # it costs time, for users who are short of memory
)
