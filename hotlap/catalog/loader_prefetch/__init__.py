from hotlap.catalog.entry import Entry, Stage, When, WholeNumber, within
from hotlap.records.plan import Risk

ENTRY = Entry(
    code="D103",
    title="More batches prepared ahead of time",
    risk=Risk.ROUNDING,
    apply=within(__name__, "apply"),
    detect=within(__name__, "detect"),
    values=WholeNumber(1, 64),
    tries=within(__name__, "detect", "tries"),
    stage=Stage.LOADER,
    automatic=False,  # whether the program changes its sampler while training cannot be known beforehand
    when=When.LOADER,
)
