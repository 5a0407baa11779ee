from hotlap.catalog.entry import Entry, WholeNumber
from hotlap.catalog.threads.apply import apply, environment
from hotlap.catalog.threads.detect import detect, tries
from hotlap.model.plan import Risk

ENTRY = Entry(
    code="C113",
    title="As many threads as there are cores left for them",
    risk=Risk.ROUNDING,
    apply=apply,
    detect=detect,
    environment=environment,
    values=WholeNumber(1, 1024),
    tries=tries,
    order=10,
    alone=True,
)
