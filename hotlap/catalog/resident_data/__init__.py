from hotlap.catalog.entry import Entry, OneOf, When
from hotlap.catalog.resident_data.apply import apply
from hotlap.catalog.resident_data.detect import detect
from hotlap.model.plan import Risk

ENTRY = Entry(
    code="D110",
    title="The dataset kept in memory, a batch one gather",
    risk=Risk.EXACT,
    apply=apply,
    detect=detect,
    values=OneOf(("device", "host")),
    order=24,
    reach=0.9,
    when=When.LOADER,
)
