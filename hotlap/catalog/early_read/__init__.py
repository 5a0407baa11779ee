from hotlap.catalog.early_read.apply import apply
from hotlap.catalog.early_read.detect import detect
from hotlap.catalog.entry import Entry
from hotlap.model.plan import Risk

ENTRY = Entry(
    code="H110",
    title="The loss is read without a wait for the backward pass",
    risk=Risk.EXACT,
    apply=apply,
    detect=detect,
    device="cuda",
    reach=0.5,
    automatic=True,
)
