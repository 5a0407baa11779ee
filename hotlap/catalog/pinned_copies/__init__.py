from hotlap.catalog.entry import Entry
from hotlap.catalog.pinned_copies.apply import apply
from hotlap.catalog.pinned_copies.detect import detect
from hotlap.model.plan import Risk

ENTRY = Entry(
    code="D121",
    title="Copies of batches to the device from pinned memory, without a wait",
    risk=Risk.EXACT,
    apply=apply,
    detect=detect,
    device="cuda",
    order=27,
)
