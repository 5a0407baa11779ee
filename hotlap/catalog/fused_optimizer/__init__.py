from hotlap.catalog.entry import Entry
from hotlap.catalog.fused_optimizer.apply import apply
from hotlap.catalog.fused_optimizer.detect import detect
from hotlap.model.plan import Risk

ENTRY = Entry(
    code="C106",
    title="One kernel for the whole optimizer step",
    risk=Risk.ROUNDING,
    apply=apply,
    detect=detect,
    order=38,  # before those that ask whether a step is fused
    reach=0.6,
    alone=True,
)
