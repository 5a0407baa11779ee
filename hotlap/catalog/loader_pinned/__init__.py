from hotlap.catalog.entry import Entry, When
from hotlap.catalog.loader_pinned.apply import apply
from hotlap.catalog.loader_pinned.detect import detect
from hotlap.model.plan import Risk

ENTRY = Entry(
    code="D104",
    title="Batches wait in page-locked memory",
    risk=Risk.EXACT,
    apply=apply,
    detect=detect,
    device="cuda",
    order=34,
    when=When.LOADER,
)
