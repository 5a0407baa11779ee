"""Describes what a process left behind as facts: each has a name and a value that must be the same in both arms.

Each fact belongs to a *class*. If two processes of the baseline with the same seed differ in one fact (a time in a
printed line, a time stamp in a file's name), every fact of its class is left out.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hotlap.records.plan import Risk
from hotlap.records.traces import Fingerprint, SavedFile, State
from hotlap.records.trial import Sample

NUMBER = re.compile(r"[-+]?[A-Za-z_]*\d[\w.]*(?:(?<=[eE])[-+]\d+)?")
FRACTION = re.compile(r"\d\.\d|\de-?\d|\b(?:inf|nan)\b")
DIGEST = re.compile("[0-9a-f]{16}")  # in the place of a value
LONGEST = 80  # characters of a line in a message


class Fact(NamedTuple):
    kind: str  # its class
    name: str  # unique among the facts of one process
    value: str


def template(text: str) -> str:
    return NUMBER.sub("#", text)


def shown(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _fingerprints(found: Sequence[Fingerprint]) -> Iterator[Fact]:
    for fingerprint in found:
        yield Fact(fingerprint.name, fingerprint.name, fingerprint.digest)


def weights(sample: Sample, risk: Risk) -> Iterator[Fact]:
    return _fingerprints(state_of(sample).weights)


def optimizers(sample: Sample, risk: Risk) -> Iterator[Fact]:
    return _fingerprints(state_of(sample).optimizers)


def streams(sample: Sample, risk: Risk) -> Iterator[Fact]:
    """Yield the random streams; kernels of another precision may draw differently on a device, and nowhere else."""
    for name, digest in state_of(sample).streams:
        if risk.rank < Risk.NUMERIC.rank or not name.startswith("cuda"):
            yield Fact(name, name, digest)


def held(sample: Sample, risk: Risk) -> Iterator[Fact]:
    return _fingerprints(state_of(sample).held)


def contents(sample: Sample, risk: Risk) -> Iterator[Fact]:
    """Yield arrays and whole numbers, which other roundings may change by any amount, such as an index."""
    if risk is Risk.EXACT:
        for name, digest in state_of(sample).contents:
            yield Fact(name, name, digest)


def own_streams(sample: Sample, risk: Risk) -> Iterator[Fact]:
    for name, digest in state_of(sample).own_streams:
        if risk.rank < Risk.NUMERIC.rank or not name.endswith("(cuda)"):
            yield Fact(name, name, digest)


def schedulers(sample: Sample, risk: Risk) -> Iterator[Fact]:
    """Yield the attributes of schedulers; above exact only those without fractions, which follow the loss."""
    for name, value in state_of(sample).schedulers:
        if risk is Risk.EXACT or not (FRACTION.search(value) or DIGEST.fullmatch(value)):
            yield Fact(name, name, value)


def evaluations(sample: Sample, risk: Risk) -> Iterator[Fact]:
    for number, evaluation in enumerate(state_of(sample).evaluations, start=1):
        name = f"evaluation {number}"
        yield Fact("calls", f"{name}: number of model calls", f"{evaluation.calls} after step {evaluation.step}")
        if risk is Risk.EXACT:
            yield Fact(
                "outputs",
                f"{name}: model output",
                f"{evaluation.total!r} in sum and {evaluation.size!r} in size",
            )


def metrics(sample: Sample, risk: Risk) -> Iterator[Fact]:
    if risk is Risk.EXACT:
        for number, reading in enumerate(sample.readings, start=1):
            yield Fact(reading.name, f"{reading.name}, reading {number}", repr(reading.value))


def processes(sample: Sample, risk: Risk) -> Iterator[Fact]:
    for name, value in state_of(sample).process:
        yield Fact(name, name, value)


def exit_codes(sample: Sample, risk: Risk) -> Iterator[Fact]:
    code = sample.traces.exit_code if sample.traces is not None else None
    if code is not None:
        yield Fact("exit code", "exit code", str(code))


def files(sample: Sample, risk: Risk) -> Iterator[Fact]:
    for path, name, saved in _placed(sample):
        yield Fact(f"{path} name", f"{name}: the file", saved.path)
        yield Fact(f"{path} kind", f"{name}: its kind", saved.kind)
        if saved.mode is not None:
            yield Fact(f"{path} mode", f"{name}: its mode", f"{saved.mode:03o}")
        yield Fact(f"{path} parts", f"{name}: its contents", ", ".join(part.name for part in saved.parts))
        if risk is not Risk.EXACT:
            yield Fact(f"{path} words", f"{name}: its words", saved.words)
            continue
        yield Fact(
            f"{path} rest", f"{name}: {'everything but its tensors' if saved.parts else 'its content'}", saved.digest
        )
        for part in saved.parts:
            yield Fact(f"{path} {part.name}", f"{name}: {part.name}", part.digest)


def saved_parts(sample: Sample) -> Iterator[tuple[str, Fingerprint]]:
    for _, name, saved in _placed(sample):
        for part in saved.parts:
            yield f"{name}: {part.name}", part


def _placed(sample: Sample) -> Iterator[tuple[str, str, SavedFile]]:
    """Yield files named by their place among those that differ only in the numbers of their paths, such as a time."""
    groups: dict[str, list[SavedFile]] = {}
    for saved in sample.traces.saved if sample.traces is not None else ():
        groups.setdefault(template(saved.path), []).append(saved)
    for path, group in groups.items():
        for number, saved in enumerate(group, start=1):
            yield path, path if len(group) == 1 else f"{path} ({number})", saved


def printed(sample: Sample, risk: Risk) -> Iterator[Fact]:
    return _lines(sample.traces.printed if sample.traces is not None else (), risk, ordered=True)


def complained(sample: Sample, risk: Risk) -> Iterator[Fact]:
    return _lines(sample.traces.complained if sample.traces is not None else (), risk, ordered=False)


def _lines(lines: Sequence[str], risk: Risk, ordered: bool) -> Iterator[Fact]:
    """Yield, by the words of a line, how often it was printed and each number in it."""
    words = [template(line) for line in lines]
    for text, count in Counter(words).items():
        yield Fact(f"count {text}", f"number of times “{shown(text)}” was printed", str(count))
    if ordered:
        yield Fact("order", "the order of lines", _digest("\n".join(words)))
    if risk is not Risk.EXACT:
        return
    places: Counter[str] = Counter()
    for line, text in zip(lines, words, strict=True):
        places[text] += 1
        for number, found in enumerate(NUMBER.findall(line)):
            name = f"line {places[text]} of “{shown(text)}”, number {number + 1}"
            yield Fact(f"number {number} of {text}", name, found)


def state_of(sample: Sample) -> State:
    known = sample.traces.state if sample.traces is not None else None
    return known if known is not None else _NOTHING


_NOTHING = State(
    weights=(), optimizers=(), streams=(), evaluations=(), memory=(), reserved_mb=None, unreadable=(), world=1
)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=8).hexdigest()
