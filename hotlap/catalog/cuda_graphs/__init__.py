from hotlap.catalog.cuda_graphs.apply import apply
from hotlap.catalog.cuda_graphs.detect import detect
from hotlap.catalog.entry import Entry
from hotlap.model.plan import Risk

ENTRY = Entry(
    code="C111",
    title="Forward, backward and optimizer step replayed as CUDA graphs",
    risk=Risk.ROUNDING,
    apply=apply,
    detect=detect,
    device="cuda",
    order=90,  # what changes the model or its inputs comes before
    conflicts=frozenset({"compile"}),
    reach=0.8,
    prepares=1.0,
    alone=True,
)
