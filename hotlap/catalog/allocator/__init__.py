from hotlap.catalog.allocator.apply import apply, environment
from hotlap.catalog.allocator.detect import detect
from hotlap.catalog.entry import Entry, When
from hotlap.model.plan import Risk

ENTRY = Entry(
    code="C112",
    title="Device memory in segments that grow",
    risk=Risk.EXACT,
    apply=apply,
    detect=detect,
    environment=environment,
    device="cuda",
    order=10,
    when=When.START,
)
