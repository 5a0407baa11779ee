from hotlap.catalog.entry import Entry, WholeNumber
from hotlap.catalog.progress_rate.apply import apply
from hotlap.catalog.progress_rate.detect import detect
from hotlap.model.plan import Risk

ENTRY = Entry(
    code="H103",
    title="Progress bars are drawn once a second",
    risk=Risk.ROUNDING,  # of what the program can see, not of a number
    apply=apply,
    detect=detect,
    values=WholeNumber(1, 3600),
    order=70,
)
