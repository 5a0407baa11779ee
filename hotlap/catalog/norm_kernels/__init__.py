from hotlap.catalog.entry import Entry
from hotlap.catalog.norm_kernels.apply import apply
from hotlap.catalog.norm_kernels.detect import detect
from hotlap.model.plan import Risk

ENTRY = Entry(
    code="C116",
    title="Batch normalisation and the activation behind it in one pass",
    risk=Risk.ROUNDING,
    apply=apply,
    detect=detect,
    device="cuda",
    order=37,
    reach=0.2,
    alone=True,
)
