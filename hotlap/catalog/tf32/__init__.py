from hotlap.catalog.entry import Entry
from hotlap.catalog.tf32.apply import apply
from hotlap.catalog.tf32.detect import detect
from hotlap.model.plan import Risk

ENTRY = Entry(
    code="C101",
    title="Matrix products of float32 in TF32",
    risk=Risk.NUMERIC,
    apply=apply,
    detect=detect,
    device="cuda",
    order=30,
    reach=0.4,
    alone=True,
)
