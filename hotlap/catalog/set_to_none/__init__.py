from hotlap.catalog.entry import Entry, When
from hotlap.catalog.set_to_none.apply import apply
from hotlap.catalog.set_to_none.detect import detect
from hotlap.model.plan import Risk

ENTRY = Entry(
    code="H108",
    title="Gradients written to zero instead of dropped are reported",
    risk=Risk.EXACT,
    apply=apply,
    detect=detect,
    order=91,
    when=When.START,
)
