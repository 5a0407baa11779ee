"""Detectors for the training work itself: forward, backward, optimizer, and the launches they make."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.diagnose.sentences import listed, part, percent
from hotlap.diagnose.step import NOTICEABLE, Step
from hotlap.diagnose.verdict import BOUND, DEVICE_BUSY, SLOW_LAUNCH_US
from hotlap.records.diagnosis import Finding
from hotlap.records.figures import number
from hotlap.records.observation import BACKWARD, FORWARD, OPTIMIZER, Optimizer

SLOW_OPTIMIZER = 0.15  # of a step
LEAST_BACKWARD = 2.0  # times forward: it computes gradients of inputs and of weights
UNUSUAL_BACKWARD = 4.0  # times forward
FEW_LAUNCHES = 20.0  # a step; below, launching is not what takes the host's time
RECURRENT = ("LSTM", "GRU", "RNN")

# torch.optim classes with a fused implementation on CPU and CUDA.
FUSABLE = frozenset({"Adam", "AdamW", "SGD"})


def forward(step: Step) -> Iterator[Finding]:
    cost, hot = step.ms(FORWARD), step.hot_line(FORWARD)
    if not _dominant(step, FORWARD):
        return
    written = next((model.place for model in step.observation.models if model.place), None)
    line = f"; {number(hot.ms_per_step)} ms of it on the line shown" if hot else ""
    yield step.finding(
        "slow-forward",
        title=f"the forward pass takes {percent(step.share(FORWARD))} of each step",
        evidence=f"{part(cost, step.total)}{line}",
        advice=_forward_advice(step, hot is not None),
        place=step.hot_place(FORWARD) or written,
        cost=cost,
    )


def _forward_advice(step: Step, line_known: bool) -> str:
    start = "look at this line first: replace Python loops over a tensor by one operation" if line_known else ""
    if any(model.compiled for model in step.observation.models):
        return start or "the model is compiled already: reduce the work itself (smaller inputs, cheaper layers)"
    if step.layers(*RECURRENT):
        rest = "torch.compile skips LSTM and GRU layers, so look at what surrounds them"
    else:
        rest = "try torch.compile(model) and measure: it does not always help"
    return f"{start}; {rest}" if start else rest


def backward(step: Step) -> Iterator[Finding]:
    if not _dominant(step, BACKWARD) or any(launch_overhead(step)):
        return  # where launches are the cost, backward merely holds most of them

    cost, forward_cost = step.ms(BACKWARD), step.ms(FORWARD)
    beyond_usual = max(0.0, cost - LEAST_BACKWARD * forward_cost)
    if not step.worth_saying(beyond_usual):
        return
    ratio = f", {number(cost / forward_cost)}× the forward pass" if forward_cost > 0 else ""
    yield step.finding(
        "slow-backward",
        title=f"the backward pass takes {percent(step.share(BACKWARD))} of each step",
        evidence=f"{part(cost, step.total)}{ratio}",
        advice=_backward_advice(step, cost > UNUSUAL_BACKWARD * forward_cost > 0),
        place=step.hot_place(BACKWARD),
        cost=beyond_usual,
    )


def _backward_advice(step: Step, unusual: bool) -> str:
    if len(step.observation.ranks) > 1:
        return "ranks wait for each other here: compare their own work first, then look at gradient bucket sizes"
    if unusual:
        threads = "" if step.asynchronous else ", or more threads than small tensors need (try OMP_NUM_THREADS=1)"
        return f"twice the forward pass is usual: look for anomaly mode, recomputation, a retained graph{threads}"
    return "freeze what is not trained (requires_grad=False) and detach what needs no gradient"


def _dominant(step: Step, phase: str) -> bool:
    return step.largest_phase() == phase and step.share(phase) >= BOUND and step.worth_saying(step.ms(phase))


def slow_optimizer(step: Step) -> Iterator[Finding]:
    cost = step.ms(OPTIMIZER)
    if step.share(OPTIMIZER) < SLOW_OPTIMIZER or not step.worth_saying(cost):
        return
    own = _users_own(step)
    yield step.finding(
        "slow-optimizer",
        title=f"the optimizer takes {percent(step.share(OPTIMIZER))} of each step",
        evidence=f"{part(cost, step.total)}{_optimizers_evidence(step)}",
        advice=_optimizer_advice(step, own is not None),
        place=step.hot_place(OPTIMIZER) or (own.place if own else None),
        cost=cost,
    )


def unfused_optimizer(step: Step) -> Iterator[Finding]:
    cost, plain = step.ms(OPTIMIZER), _fusable(step)
    if plain and NOTICEABLE <= step.share(OPTIMIZER) < SLOW_OPTIMIZER and step.worth_saying(cost):
        yield step.finding(
            "unfused-optimizer",
            title=f"{listed(dict.fromkeys(found.name for found in plain))} runs without its fused implementation",
            evidence=f"{part(cost, step.total)}{_optimizers_evidence(step)}",
            advice="pass fused=True (and not foreach=True) to the optimizer",
            place=step.hot_place(OPTIMIZER),
            cost=cost,
        )


def _optimizers_evidence(step: Step) -> str:
    found = [f"{optimizer.name} over {optimizer.tensors} tensors" for optimizer in step.observation.optimizers]
    return f"; {listed(found)}" if found else ""


def _optimizer_advice(step: Step, own: bool) -> str:
    if own:
        return "the step is your own code: update all tensors at once (torch._foreach_*), not one by one"
    if _fusable(step):
        return "pass fused=True (and not foreach=True) to the optimizer"
    plain = [
        optimizer for optimizer in step.observation.optimizers if not optimizer.fused and optimizer.foreach is not True
    ]
    if plain and not step.asynchronous:
        return "pass foreach=True to the optimizer if it accepts it: on CPU, torch does not choose it by itself"
    return "use fewer, larger parameter tensors or a cheaper optimizer: the cost is per tensor"


def _fusable(step: Step) -> list[Optimizer]:
    return [
        optimizer
        for optimizer in step.observation.optimizers
        if optimizer.name in FUSABLE and not optimizer.fused and _is_torchs(optimizer)
    ]


def _users_own(step: Step) -> Optimizer | None:
    return next((optimizer for optimizer in step.observation.optimizers if _is_users(optimizer)), None)


def _is_torchs(optimizer: Optimizer) -> bool:
    """Return whether the class is torch's: other libraries have an AdamW too, which takes no `fused`."""
    return optimizer.place is None or "torch/optim/" in optimizer.place.file.replace("\\", "/")


def _is_users(optimizer: Optimizer) -> bool:
    file = optimizer.place.file if optimizer.place else ""
    return not _is_torchs(optimizer) and "site-packages" not in file and "dist-packages" not in file


def launch_overhead(step: Step) -> Iterator[Finding]:
    launches = step.device.launches_per_step if step.device else 0.0
    cost = min(step.issuing, step.idle)
    if launches < FEW_LAUNCHES or step.share_of(step.busy) >= DEVICE_BUSY or step.share_of(cost) < BOUND:
        return
    launch_us = step.issuing * 1000 / launches
    if launch_us > SLOW_LAUNCH_US:
        return
    yield step.finding(
        "launch-overhead",
        title=f"the host issues {launches:,.0f} launches a step and the device waits for them",
        evidence=f"{part(step.issuing, step.total)} in forward, backward and optimizer, "
        f"{number(launch_us)} µs a launch; the device is busy {part(step.busy, step.total)}",
        advice=_launch_advice(step),
        place=None,
        cost=cost,
    )


def _launch_advice(step: Step) -> str:
    fused = "fused=True on the optimizer, then " if _fusable(step) else ""
    if step.layers(*RECURRENT):
        return f"{fused}CUDA graphs around the step (torch.compile skips LSTM and GRU layers)"
    return f'{fused}torch.compile(model, mode="reduce-overhead") or CUDA graphs: one launch for many kernels'
