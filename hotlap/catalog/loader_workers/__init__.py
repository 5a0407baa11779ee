from hotlap.catalog.entry import Entry, When, WholeNumber
from hotlap.catalog.loader_workers.apply import apply
from hotlap.catalog.loader_workers.detect import detect, tries
from hotlap.model.plan import Risk

ENTRY = Entry(
    code="D101",
    title="Samples are made by other processes while the model trains",
    risk=Risk.ROUNDING,
    automatic=False,  # it starts processes, which see a change of the dataset an epoch later: asked for, or proven
    apply=apply,
    detect=detect,
    values=WholeNumber(1, 512),
    tries=tries,
    order=40,  # the last to subscribe is asked first: the others see the workers given here
    reach=0.5,
    when=When.LOADER,
)
