from hotlap.catalog.cudnn_autotuner.apply import apply
from hotlap.catalog.cudnn_autotuner.detect import detect
from hotlap.catalog.entry import Entry
from hotlap.model.plan import Risk

ENTRY = Entry(
    code="C102",
    title="cuDNN tries its convolution algorithms and keeps the fastest",
    risk=Risk.ROUNDING,
    apply=apply,
    detect=detect,
    device="cuda",
    order=31,
    alone=True,
)
