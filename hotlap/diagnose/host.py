"""Detectors for what the host does besides training: reads of device values, garbage, evaluation, the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hotlap.diagnose.sentences import listed, part, percent
from hotlap.diagnose.step import NOTICEABLE, Step
from hotlap.records.diagnosis import Finding
from hotlap.records.figures import number
from hotlap.records.observation import EVALUATION, GARBAGE, REST, SPAN_PREFIX, CodeLine, Sync

REST_SHARE = 0.05  # of a step; every loop has a little
SPAN_SHARE = 0.10  # of a step

_METHODS = frozenset({"item", "cpu", "tolist", "numpy", "nonzero", "to"})
_KEEP = "keep the value on the device (add up loss.detach()) and read it every N steps or once an epoch"
_SYNC_ADVICE = {
    "bool": "decide on the device (torch.where), or test the condition only every N steps",
    "print": "print tensors only every N steps",
    "nonzero": "only the device knows the size of its result: use a mask of fixed shape (torch.where)",
    "synchronize": "remove torch.cuda.synchronize() from the loop; measure time with CUDA events and read them later",
    "empty_cache": "remove torch.cuda.empty_cache() from the loop: it does not prevent leaks",
}


def syncs(step: Step) -> Iterator[Finding]:
    lines: dict[tuple[str, int], list[Sync]] = {}
    for sync in step.observation.syncs:
        lines.setdefault((sync.file, sync.line), []).append(sync)
    for found in sorted(lines.values(), key=lambda found: -_cost(found)):
        if step.worth_saying(_cost(found)):
            yield _sync_finding(step, found)


def _cost(found: Sequence[Sync]) -> float:
    return sum(sync.ms_per_step for sync in found)


def _sync_finding(step: Step, found: Sequence[Sync]) -> Finding:
    first = max(found, key=lambda sync: sync.ms_per_step)
    kinds = listed(dict.fromkeys(_call(sync.kind) for sync in found))
    waits = any(sync.waits for sync in found)
    times_a_step = number(sum(sync.per_step for sync in found))
    return step.finding(
        "sync-in-loop",
        title=f"{kinds} waits for the device" if waits else f"{kinds} costs time here and would wait on CUDA",
        evidence=f"{part(_cost(found), step.total)} in {times_a_step} calls a step{_doubt(step, waits)}",
        advice=_sync_advice(first),
        place=CodeLine(file=first.file, line=first.line, function=first.function),
        cost=_cost(found),
    )


def _call(kind: str) -> str:
    return f".{kind}()" if kind in _METHODS else f"{kind}()"


def _doubt(step: Step, waits: bool) -> str:
    if waits and step.device is None:
        return "; part of it may be the device's own work (no device profile)"
    return ""


def _sync_advice(sync: Sync) -> str:
    advice = _SYNC_ADVICE.get(sync.kind, _KEEP)
    if sync.via is None:
        return advice
    return f"{sync.via} makes this call: have it log or check less often; in your own code, {advice}"


def garbage(step: Step) -> Iterator[Finding]:
    cost = step.ms(GARBAGE)
    if step.worth_saying(cost):
        yield step.finding(
            "garbage-collection",
            title=f"Python's garbage collector takes {percent(step.share(GARBAGE))} of each step",
            evidence=part(cost, step.total),
            advice="move gc.collect() out of the loop; before the loop, call gc.collect() and gc.freeze() once, "
            "so that later collections skip the model and the data",
            place=step.hot_place(GARBAGE),
            cost=cost,
        )


def rest(step: Step) -> Iterator[Finding]:
    cost, hot = step.ms(REST), step.hot_line(REST)
    if step.share(REST) < REST_SHARE or not step.worth_saying(cost):
        return
    holds = [] if step.observation.models else ["the forward pass (no module was seen)"]
    holds += [] if step.observation.loaders else ["the making of batches (no DataLoader was seen)"]
    inside = f"; this includes {listed(holds)}" if holds else ""
    line = f"; {number(hot.ms_per_step)} ms of it on the line shown" if hot else ""
    yield step.finding(
        "rest",
        title=f"{percent(step.share(REST))} of each step is outside data, model and optimizer",
        evidence=f"{part(cost, step.total)}{line}{inside}",
        advice=_rest_advice(hot is not None),
        place=step.hot_place(REST),
        cost=cost,
    )


def _rest_advice(line_known: bool) -> str:
    moves = "move the work out of the loop, do it only every N steps, or do it on the device"
    if line_known:
        return f"look at this line: if it is not the model, {moves}"
    return "mark sections with hotlap.span(...) and profile again, then " + moves


def spans(step: Step) -> Iterator[Finding]:
    for key, cost in step.spans().items():
        if step.share_of(cost) >= SPAN_SHARE and step.worth_saying(cost):
            name = key.removeprefix(SPAN_PREFIX)
            yield step.finding(
                "slow-span",
                title=f"your section “{name}” takes {percent(step.share_of(cost))} of each step",
                evidence=f"{part(cost, step.total)}, not counting other phases inside it",
                advice="look at its hot line, or divide it into smaller sections and profile again",
                place=step.hot_place(key),
                cost=cost,
            )


def evaluation(step: Step) -> Iterator[Finding]:
    """A shorter evaluation shortens the run but no step, so its bound is for the whole window."""
    share = step.observation.shares.get(EVALUATION, 0.0)
    if share < NOTICEABLE:
        return
    cost = step.observation.ms(EVALUATION)
    yield Finding(
        code="evaluation-share",
        title=f"evaluation takes {percent(share)} of the window (not part of step speed)",
        evidence=f"{part(cost, step.observation.mean_step_ms)} of window time a step; "
        "the bound is for the whole window: training steps do not get faster",
        advice="evaluate under torch.inference_mode() with larger batches, keep metrics on the device "
        "until the end, and evaluate less often if you can",
        place=step.hot_place(EVALUATION),
        ms_per_step=cost,
        at_most=1.0 / max(1.0 - share, 0.01),
    )
