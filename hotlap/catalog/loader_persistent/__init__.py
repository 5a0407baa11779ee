from hotlap.catalog.entry import Entry, Stage, When, within
from hotlap.records.plan import Risk

ENTRY = Entry(
    code="D102",
    title="Workers stay alive from epoch to epoch",
    risk=Risk.EXACT,
    apply=within(__name__, "apply"),
    detect=within(__name__, "detect"),
    stage=Stage.DATASET,  # innermost: entries that read the loader another way come first
    when=When.LOADER,
)
