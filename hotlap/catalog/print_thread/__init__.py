from hotlap.catalog.entry import Entry, When, within
from hotlap.records.plan import Risk

ENTRY = Entry(
    code="H109",
    title="Lines the loop prints are written by another thread",
    risk=Risk.ROUNDING,  # changes what the program can see, but no number
    apply=within(__name__, "apply"),
    detect=within(__name__, "detect"),
    automatic=False,  # a killed program loses its last lines: only on request
    when=When.START,
)
