from hotlap.catalog.device_prefetch.apply import apply
from hotlap.catalog.device_prefetch.detect import detect
from hotlap.catalog.entry import Entry, When
from hotlap.model.plan import Risk

ENTRY = Entry(
    code="D120",
    title="The next batch copied to the device while this step runs",
    risk=Risk.EXACT,
    apply=apply,
    detect=detect,
    device="cuda",
    order=26,
    reach=0.4,
    when=When.LOADER,
)
