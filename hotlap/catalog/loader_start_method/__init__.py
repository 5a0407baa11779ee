from hotlap.catalog.entry import Entry, OneOf, Stage, When, within
from hotlap.records.plan import Risk

ENTRY = Entry(
    code="D105",
    title="Workers start without a fork of the training",
    risk=Risk.EXACT,
    automatic=False,  # it starts a process that the program does not know of
    apply=within(__name__, "apply"),
    detect=within(__name__, "detect"),
    values=OneOf(("fork", "forkserver", "spawn")),
    stage=Stage.LAST,  # workers about to start pass here before cuda-graphs looks how they will
    when=When.LOADER,
)
