from hotlap.catalog.entry import Entry, When, within
from hotlap.records.plan import Risk

ENTRY = Entry(
    code="D102",
    title="Workers stay alive from epoch to epoch",
    risk=Risk.EXACT,
    apply=within(__name__, "apply"),
    detect=within(__name__, "detect"),
    order=20,  # innermost: whoever reads the loader another way comes first
    when=When.LOADER,
)
