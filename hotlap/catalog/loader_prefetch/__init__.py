from hotlap.catalog.entry import Entry, When, WholeNumber
from hotlap.catalog.loader_prefetch.apply import apply
from hotlap.catalog.loader_prefetch.detect import detect, tries
from hotlap.model.plan import Risk

ENTRY = Entry(
    code="D103",
    title="More batches are made ahead",
    risk=Risk.ROUNDING,
    apply=apply,
    detect=detect,
    values=WholeNumber(1, 64),
    tries=tries,
    order=32,
    automatic=False,  # whether the program changes its sampler while it trains is not known beforehand
    when=When.LOADER,
)
