from hotlap.catalog.channels_last.apply import apply
from hotlap.catalog.channels_last.detect import detect
from hotlap.catalog.entry import Entry
from hotlap.model.plan import Risk

ENTRY = Entry(
    code="C105",
    title="Convolutions on memory with the channels last",
    risk=Risk.ROUNDING,
    apply=apply,
    detect=detect,
    order=48,
    reach=0.1,
    alone=True,
)
