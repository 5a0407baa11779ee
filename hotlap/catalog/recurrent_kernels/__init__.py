from hotlap.catalog.entry import Entry
from hotlap.catalog.recurrent_kernels.apply import apply
from hotlap.catalog.recurrent_kernels.detect import detect
from hotlap.model.plan import Risk

ENTRY = Entry(
    code="C115",
    title="Recurrent layers with their weights kept on the chip",
    risk=Risk.ROUNDING,
    apply=apply,
    detect=detect,
    device="cuda",
    order=36,
    reach=0.6,
    alone=True,
)
