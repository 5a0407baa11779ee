from hotlap.catalog.entry import Entry, When
from hotlap.catalog.loader_persistent.apply import apply
from hotlap.catalog.loader_persistent.detect import detect
from hotlap.model.plan import Risk

ENTRY = Entry(
    code="D102",
    title="Workers stay alive from epoch to epoch",
    risk=Risk.EXACT,
    apply=apply,
    detect=detect,
    order=20,  # innermost: whoever reads the loader another way comes first
    when=When.LOADER,
)
