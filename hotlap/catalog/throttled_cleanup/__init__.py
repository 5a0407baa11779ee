from hotlap.catalog.entry import Entry, OneOf, within
from hotlap.records.plan import Risk

ENTRY = Entry(
    code="H101",
    title="Clean-up calls in the training loop made only once in a hundred times",
    risk=Risk.ROUNDING,  # changes what the program can see, but no number
    apply=within(__name__, "apply"),
    detect=within(__name__, "detect"),
    values=OneOf(("memory", "all")),
    reach=0.9,
)
