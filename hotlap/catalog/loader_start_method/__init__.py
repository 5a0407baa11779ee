from hotlap.catalog.entry import Entry, OneOf, Stage, When, within
from hotlap.records.plan import Risk

ENTRY = Entry(
    code="D105",
    title="Workers started without forking the training process",
    risk=Risk.EXACT,
    automatic=False,  # it starts a process that the program does not know about
    apply=within(__name__, "apply"),
    detect=within(__name__, "detect"),
    values=OneOf(("fork", "forkserver", "spawn")),
    stage=Stage.LAST,  # decides how workers start before cuda-graphs looks at that
    when=When.LOADER,
)
