"""Finds methods and functions that a framework calls per batch, per sample or per epoch."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.analysis.frequency.containers import sampled_modules
from hotlap.analysis.frequency.heat import Heat, Side
from hotlap.analysis.names.classes import Reference
from hotlap.analysis.names.project import Project
from hotlap.analysis.parse.facts import Call, Class, Function
from hotlap.analysis.parse.terms import LOADER, Term
from hotlap.records.scan_finding import Confidence, Frequency, Step

_TRAIN_BATCH = frozenset(
    "training_step on_train_batch_start on_train_batch_end on_before_backward on_after_backward on_before_zero_grad "
    "on_before_optimizer_step optimizer_step training_step_end on_step_begin on_step_end on_substep_end "
    "on_batch_begin on_batch_end on_batch_start before_batch after_batch after_loss after_backward after_step "
    "after_pred on_train_batch_begin on_backward on_batch post_batch pre_batch train_step train_on_batch "
    "before_train_iter after_train_iter before_train_step after_train_step on_train_step_start on_train_step_begin "
    "on_train_step_end on_training_step_end on_step_training on_sample on_forward on_criterion".split()
)
_EVALUATE_BATCH = frozenset(
    "validation_step test_step predict_step prediction_step on_validation_batch_start on_validation_batch_end "
    "on_test_batch_start on_test_batch_end validation_step_end eval_step test_on_batch on_prediction_step "
    "after_val_iter on_eval_step_start on_eval_step_end on_val_step_end on_step_validation on_sample_validation "
    "on_forward_validation on_criterion_validation on_val_batch_end on_eval_batch_end".split()
)
_EVALUATE_STEP = _EVALUATE_BATCH | frozenset("val_step valid_step evaluation_step evaluate_step eval_batch".split())
_EPOCH = frozenset(
    "on_train_epoch_start on_train_epoch_end on_validation_epoch_start on_validation_epoch_end on_epoch_end "
    "on_epoch_begin on_epoch_start training_epoch_end validation_epoch_end before_epoch after_epoch "
    "on_test_epoch_end".split()
)
_EVENTS = frozenset(
    name for name in _TRAIN_BATCH | _EVALUATE_BATCH | _EPOCH if name.startswith(("on_", "before_", "after_"))
)
_HF_TRAINER = {"compute_loss": Frequency.BATCH}
_FRAMEWORK = (
    "Lightning",
    "Trainer",
    "Callback",
    "Hook",
    "Module",
    "Learner",
    "Model",
    "Task",
    "System",
    "Base",
    "Runner",
)
_RUN_ARGUMENTS = frozenset(
    "step map apply checkpoint vmap filter reduce partial jit grad functional_call Engine run_engine register_hook "
    "register_forward_hook register_forward_pre_hook register_full_backward_hook retry_call".split()
)


def runs_its_arguments(callee: Term) -> bool:
    """Return whether the callee runs functions passed to it: optimizer.step(closure), checkpoint(block, x)."""
    if isinstance(callee, str):
        return True  # a method of an optimizer, module or tensor
    if callee[0] == "attr":
        return callee[2] in _RUN_ARGUMENTS
    return callee[0] == "name" and callee[1].rsplit(".", 1)[-1] in _RUN_ARGUMENTS


def roots(project: Project) -> Iterator[tuple[Reference, Heat]]:
    transforms = set(sampled_modules(project))
    for path, summary in project.files.items():
        for owner in summary.classes.values():
            yield from (root for root in _of_class(project, path, owner) if root[0] not in transforms)
        for name, function in summary.functions.items():
            yield from _of_function(project, Reference(path, name), function)
            for call in function.calls:
                yield from _of_call(project, path, call)
    for transform in transforms:
        step = Step(transform.path, project.function(transform).line, f"{transform.name} prepares a sample")
        yield transform, _heat(Frequency.SAMPLE, 2, step)


def _of_class(project: Project, path: str, owner: Class) -> Iterator[tuple[Reference, Heat]]:
    names = project.base_names(path, owner)
    functions = project.files[path].functions
    for method in owner.methods:
        unrelated = _is_of_another_kind(functions[f"{owner.name}.{method}"], method)
        found = None if unrelated else _hook(project, path, owner, method, names)
        if found is not None:
            frequency, side, text = found
            reference = Reference(path, f"{owner.name}.{method}")
            heat = _heat(frequency, side, Step(path, functions[reference.name].line, text))
            once = method == "predict_step"  # after the training, on request
            yield reference, heat._replace(confidence=Confidence.LOW, alone=True) if once else heat


def _hook(project: Project, path: str, owner: Class, method: str, names: set[str]) -> tuple[Frequency, int, str] | None:
    short = owner.name.rsplit(".", 1)[-1]
    inherits = any(any(word in name for word in _FRAMEWORK) for name in names)
    if inherits:
        found = _framework_hook(method, names, short)
        if found is not None:
            return found
    if method in _TRAIN_BATCH and project.files[path].functions[f"{owner.name}.{method}"].steps:
        return Frequency.BATCH, 0, f"{short}.{method} makes a training step"
    if method in _EVALUATE_STEP and (
        _has_training_step(project, path, owner) or (inherits and _trains_in_steps(project, path, owner))
    ):
        return Frequency.BATCH, 1, f"{short}.{method} makes a step of an evaluation"
    if method in ("__getitem__", "__getitems__") and project.is_dataset(path, owner):
        return Frequency.SAMPLE, 2, f"{short}.{method} loads a sample"
    if method == "step" and _is_optimizer(names, project.files[path].functions[f"{owner.name}.step"]):
        return Frequency.BATCH, 0, f"{short}.step is called every training batch"
    if method == "update" and any(name.endswith("Metric") for name in names):
        return Frequency.BATCH, 1, f"{short}.update is called every batch of an evaluation"
    if method in ("forward", "backward") and _is_function(names):
        return Frequency.BATCH, 0, f"{short}.{method} is called every batch"
    if (method == "forward" or _is_forward(project, path, owner, method)) and project.is_module(path, owner):
        return Frequency.BATCH, 0, f"{short}.{method} is called every batch"
    return None


def _is_of_another_kind(function: Function, method: str) -> bool:
    """Return whether a method with a hook's name is something else. An evaluation step that gets no batch is made by a
    training now and then; a forward pass that steps an optimizer in a loop is a whole training."""
    if method in _EVALUATE_STEP and method.endswith("_step"):
        return len(function.parameters) == 1 and not function.rest
    return method == "forward" and any(loop.trains and loop.updates for loop in function.loops)


def _is_forward(project: Project, path: str, owner: Class, method: str) -> bool:
    """Match `__call__` of a module if neither the class nor its subclasses define `forward`."""
    known = project.method(path, owner, "forward") if method == "__call__" else None
    return method == "__call__" and known is None and not project.overrides(path, owner, "forward")


def _is_function(names: set[str]) -> bool:
    return any(name.endswith("autograd.Function") or name == "Function" for name in names)


def sent(project: Project) -> dict[Reference, list[tuple[Reference, Call]]]:
    """Return the callbacks of the project's own callback classes, and where it calls methods of their name."""
    sites: dict[str, list[tuple[Reference, Call]]] = {}
    for reference, function in project.functions():
        for call in function.calls:
            name = call.callee[2] if isinstance(call.callee, tuple) and call.callee[0] == "attr" else ""
            if name in _EVENTS and not reference.name.endswith(f".{name}"):
                sites.setdefault(name, []).append((reference, call))
    if not sites:
        return {}
    return {
        Reference(path, f"{owner.name}.{method}"): sites[method]
        for path, summary in project.files.items()
        for owner in summary.classes.values()
        for method in owner.methods & sites.keys()
        if _is_own_kind(project, path, owner, method)
    }


def _is_own_kind(project: Project, path: str, owner: Class, method: str) -> bool:
    """Return whether the topmost base is another class of the project that has the method, and has no base itself."""
    _, first = project.lineage(path, owner)[-1]
    outside = [name for name in first.base_names if name not in ("object", "ABC", "Protocol")]
    return not outside and first is not owner and method in first.methods


def _has_training_step(project: Project, path: str, owner: Class) -> bool:
    """Match a hand-written trainer: it has training steps, so its evaluation steps run per batch too."""
    return any(
        project.files[where].functions[f"{base.name}.{method}"].steps
        for where, base in project.lineage(path, owner)
        for method in base.methods & _TRAIN_BATCH
    )


def _trains_in_steps(project: Project, path: str, owner: Class) -> bool:
    """Return whether a class has `train_step` beside `val_step`: its callers differentiate the loss."""
    return any(base.methods & {"train_step", "training_step"} for _, base in project.lineage(path, owner))


def evaluation_steps(project: Project) -> Iterator[Reference]:
    """Yield the evaluation steps that a hand-written trainer calls in its own loop."""
    for path, summary in project.files.items():
        for owner in summary.classes.values():
            found = owner.methods & _EVALUATE_STEP
            if found and _has_training_step(project, path, owner):
                yield from (Reference(path, f"{owner.name}.{method}") for method in found)


def _is_optimizer(names: set[str], step: Function) -> bool:
    """Match optimizers, and wrappers whose `step(self, closure=None)` steps another optimizer."""
    return any(name.endswith("Optimizer") for name in names) or (step.updates and "closure" in step.parameters)


def _framework_hook(method: str, names: set[str], short: str) -> tuple[Frequency, int, str] | None:
    if method in _TRAIN_BATCH:
        return Frequency.BATCH, 0, f"{short}.{method} is called every training batch"
    if method in _EVALUATE_BATCH:
        return Frequency.BATCH, 1, f"{short}.{method} is called every batch of an evaluation"
    if method in _EPOCH:
        return Frequency.EPOCH, 0, f"{short}.{method} is called every epoch"
    if method in _HF_TRAINER and any("Trainer" in name for name in names):
        return _HF_TRAINER[method], 0, f"{short}.{method} is called every training batch"
    return None


def streams(project: Project) -> Iterator[Reference]:
    """Yield the `__iter__` methods of datasets, which yield samples one after the other."""
    for path, summary in project.files.items():
        for owner in summary.classes.values():
            if "__iter__" in owner.methods and project.is_dataset(path, owner):
                yield Reference(path, f"{owner.name}.__iter__")


def _of_function(project: Project, reference: Reference, function: Function) -> Iterator[tuple[Reference, Heat]]:
    """Yield functions that a decorator registers for an Ignite event."""
    for name, given in function.decorators:
        if not name.endswith(".on"):
            continue
        text = " ".join(given)
        frequency = _of_event(text)
        if frequency is not None:
            often = "handler of every epoch" if frequency is Frequency.EPOCH else "handler of every iteration"
            yield reference, _heat(frequency, 0, Step(reference.path, function.line, often))


def _of_event(text: str) -> Frequency | None:
    """Return how often an Ignite event occurs, judged by its name."""
    if "ITERATION_COMPLETED" in text or "ITERATION_STARTED" in text:
        return Frequency.RARE if "every" in text or "once" in text else Frequency.BATCH
    if "EPOCH_COMPLETED" in text or "EPOCH_STARTED" in text:
        return Frequency.RARE if "every" in text or "once" in text else Frequency.EPOCH
    return None


def _of_call(project: Project, path: str, call: Call) -> Iterator[tuple[Reference, Heat]]:
    """Yield functions passed to a call that runs them: collate_fn of a loader, the update function of an engine."""
    callee = call.callee
    last = callee[-1].rsplit(".", 1)[-1] if isinstance(callee, tuple) and isinstance(callee[-1], str) else ""
    for word, term in call.keywords:
        if word in ("collate_fn", "data_collator"):
            yield from _given(project, path, call, term, Frequency.BATCH, 2, "assembles a batch")
        elif word == "worker_init_fn":
            continue
    if last == "add_event_handler" and len(call.arguments) > 1:
        frequency = _of_event(str(call.arguments[0]))
        if frequency is not None:
            yield from _given(project, path, call, call.arguments[1], frequency, 0, "is a handler of the engine")
    if last == "Engine" and call.arguments:
        for target, heat in _given(
            project, path, call, call.arguments[0], Frequency.BATCH, 0, "is run by the engine every batch"
        ):
            trains = project.function(target).steps or project.function(target).updates
            yield target, heat if trains else heat._replace(side=Side.EVALUATE)
    if last.endswith("DataLoader") or callee == LOADER:
        yield from _of_dataset(project, path, call)


def _given(
    project: Project, path: str, call: Call, term: Term, frequency: Frequency, side: int, text: str
) -> Iterator[tuple[Reference, Heat]]:
    if isinstance(term, tuple):
        for target in project.targets(term, path):
            yield target, _heat(frequency, side, Step(path, call.line, f"{target.name} {text}"))


def _of_dataset(project: Project, path: str, call: Call) -> Iterator[tuple[Reference, Heat]]:
    """Yield `__getitem__` of the object passed to a loader, which is a dataset whatever its class inherits from."""
    given = (
        call.arguments[0] if call.arguments else next((term for word, term in call.keywords if word == "dataset"), "")
    )
    answer = project.answer(given, path)
    found = project.class_of(answer, path)
    if found is None:
        return
    method = project.method(found[0], found[1], "__getitem__")
    if method is not None:
        line = project.function(method).line
        yield method, _heat(Frequency.SAMPLE, 2, Step(method.path, line, f"{method.name} loads a sample"))


def _heat(frequency: Frequency, side: int, step: Step) -> Heat:
    return Heat(frequency, Confidence.HIGH, Side(side), (step,))
