from hotlap.catalog.entry import Entry, When
from hotlap.catalog.sample_cache.apply import apply
from hotlap.catalog.sample_cache.detect import detect
from hotlap.model.plan import Risk

ENTRY = Entry(
    code="D111",
    title="Each sample fetched once and kept as it is",
    risk=Risk.EXACT,
    apply=apply,
    detect=detect,
    order=22,  # before resident-data, which then stands around it and is asked first
    reach=0.6,
    when=When.LOADER,
)
