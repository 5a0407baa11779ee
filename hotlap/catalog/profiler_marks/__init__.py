from hotlap.catalog.entry import Entry
from hotlap.catalog.profiler_marks.apply import apply
from hotlap.catalog.profiler_marks.detect import detect
from hotlap.model.plan import Risk

ENTRY = Entry(
    code="H104",
    title="Marks for a profiler are left out while none is running",
    risk=Risk.EXACT,
    apply=apply,
    detect=detect,
    reach=0.9,
)
