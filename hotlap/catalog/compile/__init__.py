from hotlap.catalog.entry import Entry, OneOf, Stage, within
from hotlap.records.plan import Risk

ENTRY = Entry(
    code="C104",
    title="The root module's forward and backward compiled",
    risk=Risk.ROUNDING,
    apply=within(__name__, "apply"),
    detect=within(__name__, "detect"),
    values=OneOf(("default", "reduce-overhead", "max-autotune")),
    tries=within(__name__, "detect", "tries"),
    stage=Stage.COMPILED,
    conflicts=frozenset({"cuda-graphs"}),
    automatic=False,  # compiling costs seconds to minutes, and on CPU it may not pay: requested, or proven by a tune
    reach=0.1,  # it gains more, but trying it takes two or three times as long: others are tried first
)
