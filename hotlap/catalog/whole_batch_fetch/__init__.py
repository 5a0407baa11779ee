from hotlap.catalog.entry import Entry, When
from hotlap.catalog.whole_batch_fetch.apply import apply
from hotlap.catalog.whole_batch_fetch.detect import detect
from hotlap.model.plan import Risk

ENTRY = Entry(
    code="D106",
    title="A batch of in-memory data is one index per tensor",
    risk=Risk.EXACT,
    apply=apply,
    detect=detect,
    order=35,
    reach=0.5,
    when=When.LOADER,
)
