from hotlap.catalog.entry import Entry, OneOf
from hotlap.catalog.throttled_cleanup.apply import ALL, MEMORY, apply
from hotlap.catalog.throttled_cleanup.detect import detect
from hotlap.model.plan import Risk

ENTRY = Entry(
    code="H101",
    title="Clean-up calls in the training loop are made once in a hundred times",
    risk=Risk.ROUNDING,  # of what the program can see, not of a number
    apply=apply,
    detect=detect,
    values=OneOf((MEMORY, ALL)),
    reach=0.9,
)
