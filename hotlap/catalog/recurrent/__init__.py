from hotlap.catalog.entry import Entry
from hotlap.catalog.recurrent.apply import apply
from hotlap.catalog.recurrent.detect import detect
from hotlap.model.plan import Risk

ENTRY = Entry(
    code="C110",
    title="Weights of recurrent layers kept in one piece of memory",
    risk=Risk.EXACT,
    apply=apply,
    detect=detect,
    device="cuda",
    order=35,
)
