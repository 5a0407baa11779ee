"""Detectors for what brings batches to the model: the loader and the copies to the device."""

from __future__ import annotations

import math
from collections.abc import Iterator

from hotlap.diagnose.sentences import part, percent
from hotlap.diagnose.step import NOTICEABLE, Step
from hotlap.diagnose.verdict import NO_FASTER
from hotlap.records.diagnosis import Finding
from hotlap.records.figures import number, times
from hotlap.records.observation import DATA, CodeLine, CopySite, Loader

LIGHT_FETCH_US = 20.0  # a sample fetched faster than this costs more to send between processes than to make


def data_wait(step: Step) -> Iterator[Finding]:
    cost, ratio, loader = step.ms(DATA), step.ceiling_ratio(), step.loader()
    if step.share(DATA) < NOTICEABLE or (ratio is not None and ratio < NO_FASTER):
        return
    bound = step.data_at_most()
    if bound < 1.0 + NOTICEABLE:
        return
    measured = f"; fed one cached batch it ran {times(ratio)} as fast" if ratio is not None else ""
    yield Finding(
        code="data-wait",
        title=f"the loop waits for data for {percent(step.share(DATA))} of each step",
        evidence=f"{part(cost, step.total)}{_loader_evidence(loader)}{measured}",
        advice=_loader_advice(step, loader),
        place=_data_place(step, loader),
        ms_per_step=step.total * (1.0 - 1.0 / bound),
        at_most=bound,
    )


def _data_place(step: Step, loader: Loader | None) -> CodeLine | None:
    """Return where samples are made. With workers, the training thread's hot line only waits for that code."""
    hot, written = step.hot_place(DATA), loader.dataset_place if loader else None
    return (written or hot) if loader and loader.workers else (hot or written)


def _loader_evidence(loader: Loader | None) -> str:
    if loader is None:
        return ""
    batch = f", batches of {loader.batch_size}" if loader.batch_size else ""
    return f"; {loader.dataset} with {loader.workers} workers{batch}"


def _loader_advice(step: Step, loader: Loader | None) -> str:
    if loader is None:
        return "prepare the next batch in a thread or process while this step runs"
    fetch = _fetch_us(step)
    if loader.workers == 0 and loader.dataset_kind == "map" and fetch is not None and fetch < LIGHT_FETCH_US:
        return (
            f"a sample takes only {number(fetch)} µs to fetch, so workers would make it slower: fetch whole "
            "batches by one index (sampler=BatchSampler(...), batch_size=None), or keep the data as tensors "
            "on the device"
        )
    return _workers_advice(step, loader)


def _workers_needed(step: Step, loader: Loader) -> int:
    rest = max(step.total - step.ms(DATA), step.total * 0.01)
    if loader.workers == 0:
        # One batch takes ms(DATA) to make; this many workers finish one in the time the rest of a step takes.
        return math.ceil(step.ms(DATA) / rest)
    # The workers make a batch every step; they must make one every step less its wait.
    return max(loader.workers + 1, math.ceil(loader.workers * step.total / rest))


def _workers_advice(step: Step, loader: Loader) -> str:
    needed, limit = _workers_needed(step, loader), most_workers(step)
    spare = 1 if loader.workers == 0 else 0  # batches are not all equally slow
    workers = max(loader.workers, min(needed + spare, limit))
    changes = _arguments(step, loader, workers)
    cheaper = "make a sample cheaper: do the work once and cache the result in memory or on disk"
    if not changes:
        return f"{cheaper} ({_cores(step)} allow no more than {limit} workers)"
    advice = f"set {', '.join(changes)} on the DataLoader"
    if loader.workers and not loader.persistent_workers and loader.is_restarted:
        advice += " (its workers are restarted every epoch)"
    if loader.dataset_kind == "iterable" and workers > loader.workers:
        advice += ", with the stream split by get_worker_info() (otherwise every worker repeats all of it)"
    if not step.asynchronous and workers > loader.workers:
        advice += f", and torch.set_num_threads({max(1, cores_each(step) - workers)})"
    return advice if needed <= limit else f"{advice}; some waiting remains, so also {cheaper}"


def _arguments(step: Step, loader: Loader, workers: int) -> list[str]:
    changes = [f"num_workers={workers}"] if workers > loader.workers else []
    if workers and not loader.persistent_workers and (changes or loader.is_restarted):
        changes.append("persistent_workers=True")
    if changes and step.cuda and not loader.pin_memory:
        changes.append("pin_memory=True")
    return changes


def most_workers(step: Step) -> int:
    """Return the most workers that leave one core to the training thread."""
    return max(0, cores_each(step) - 1)


def cores_each(step: Step) -> int:
    """Return the cores per rank, as ranks share the machine."""
    return max(1, step.observation.machine.cores // max(1, len(step.observation.ranks)))


def _cores(step: Step) -> str:
    cores, ranks = step.observation.machine.cores, len(step.observation.ranks)
    return f"{cores} cores for {ranks} ranks" if ranks > 1 else f"{cores} cores"


def _fetch_us(step: Step) -> float | None:
    samples = step.observation.samples_per_step
    return step.ms(DATA) * 1000 / samples if samples else None


def copies(step: Step) -> Iterator[Finding]:
    for site in sorted(step.observation.copies, key=lambda site: -site.ms_per_step):
        if step.asynchronous and step.worth_saying(site.ms_per_step) and (site.blocking or not site.pinned):
            yield _copy_finding(step, site)


def _copy_finding(step: Step, site: CopySite) -> Finding:
    megabytes = site.bytes_per_step / 1e6
    return step.finding(
        "blocking-copy" if site.pinned else "pageable-copy",
        title="a copy to the device blocks the host" if site.pinned else "a copy to the device from pageable memory",
        evidence=f"{part(site.ms_per_step, step.total)}, {number(site.per_step)} copies and "
        f"{number(megabytes)} MB a step",
        advice="pass non_blocking=True: the memory is pinned already" if site.pinned else _pin_advice(step),
        place=CodeLine(file=site.file, line=site.line, function=site.function),
        cost=site.ms_per_step,
    )


def _pin_advice(step: Step) -> str:
    loader = step.loader()
    if loader is not None and loader.pin_memory:
        return (
            "the loader pins its memory but this tensor is not pinned: give the batch class a "
            "pin_memory() method, or create the tensor on the device"
        )
    if loader is None:
        return "pin the memory once (pin_memory()) and copy with non_blocking=True, or create the tensor on the device"
    return "set pin_memory=True on the DataLoader and pass non_blocking=True to this copy"
