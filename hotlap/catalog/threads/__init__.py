from hotlap.catalog.entry import Entry, Stage, WholeNumber, within
from hotlap.records.plan import Risk

ENTRY = Entry(
    code="C113",
    title="As many threads as there are free cores",
    risk=Risk.ROUNDING,
    apply=within(__name__, "apply"),
    detect=within(__name__, "detect"),
    environment=within(__name__, "apply", "environment"),
    values=WholeNumber(1, 1024),
    tries=within(__name__, "detect", "tries"),
    stage=Stage.PROCESS,
    alone=True,
)
