from hotlap.catalog.entry import Entry, When
from hotlap.catalog.print_thread.apply import apply
from hotlap.catalog.print_thread.detect import detect
from hotlap.model.plan import Risk

ENTRY = Entry(
    code="H109",
    title="Lines the loop prints are written by another thread",
    risk=Risk.ROUNDING,  # of what the program can see, not of a number
    apply=apply,
    detect=detect,
    automatic=False,  # a program that is killed loses its last lines: for who prints a lot and asks for it
    when=When.START,
)
