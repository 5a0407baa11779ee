from hotlap.catalog.entry import Entry, When, within
from hotlap.records.plan import Risk

ENTRY = Entry(
    code="H109",
    title="Lines the loop prints are written by another thread",
    risk=Risk.ROUNDING,  # of what the program can see, not of a number
    apply=within(__name__, "apply"),
    detect=within(__name__, "detect"),
    automatic=False,  # a program that is killed loses its last lines: for who prints a lot and asks for it
    when=When.START,
)
