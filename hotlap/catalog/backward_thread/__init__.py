from hotlap.catalog.backward_thread.apply import apply
from hotlap.catalog.backward_thread.detect import detect
from hotlap.catalog.entry import Entry
from hotlap.model.plan import Risk

ENTRY = Entry(
    code="C114",
    title="Backward runs in the thread that called it",
    risk=Risk.ROUNDING,  # it changes no number, but the thread in which hooks of the program run
    apply=apply,
    detect=detect,
    device="cuda",
    reach=0.5,
)
