from hotlap.catalog.anomaly_mode.apply import apply
from hotlap.catalog.anomaly_mode.detect import detect
from hotlap.catalog.entry import Entry, When
from hotlap.model.plan import Risk

ENTRY = Entry(
    code="H107",
    title="Anomaly mode left on is reported",
    risk=Risk.EXACT,
    apply=apply,
    detect=detect,
    order=90,
    when=When.START,
)
