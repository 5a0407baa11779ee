from hotlap.catalog.entry import Entry, OneOf, Stage, within
from hotlap.records.plan import Risk

ENTRY = Entry(
    code="C103",
    title="The model's forward pass in half precision",
    risk=Risk.NUMERIC,
    apply=within(__name__, "apply"),
    detect=within(__name__, "detect"),
    values=OneOf(("bf16", "fp16")),
    tries=within(__name__, "detect", "tries"),
    stage=Stage.MODEL,
    after=("norm-kernels",),
    reach=0.4,
    alone=True,
)
