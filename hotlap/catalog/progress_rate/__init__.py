from hotlap.catalog.entry import Entry, Stage, WholeNumber, within
from hotlap.records.plan import Risk

ENTRY = Entry(
    code="H103",
    title="Progress bars are drawn once a second",
    risk=Risk.ROUNDING,  # changes what the program can see, but no number
    apply=within(__name__, "apply"),
    detect=within(__name__, "detect"),
    values=WholeNumber(1, 3600),
    stage=Stage.LOOP,
)
