from hotlap.catalog.autocast.apply import apply
from hotlap.catalog.autocast.detect import detect, tries
from hotlap.catalog.entry import Entry, OneOf
from hotlap.model.plan import Risk

ENTRY = Entry(
    code="C103",
    title="The model's forward pass in half precision",
    risk=Risk.NUMERIC,
    apply=apply,
    detect=detect,
    values=OneOf(("bf16", "fp16")),
    tries=tries,
    order=40,
    reach=0.4,
    alone=True,
)
