"""Rules on when graphs must not be used. Each returns the reason, or None."""

from __future__ import annotations

from typing import Any

from hotlap.patch.roots import is_compiled
from hotlap.runtime.decline import EntryDeclined
from hotlap.runtime.forwards import is_wrapper
from hotlap.runtime.recomputed_weights import weight_norms
from hotlap.runtime.replaced_methods import is_of_torch

MODULE_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GLOBAL_HOOKS = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
)


class Differs(EntryDeclined):
    """Raised when a replay differs from the model: what was replayed so far may have been wrong."""


def why_not_root(torch: Any, module: Any, device_type: str, is_differentiated: bool = False) -> str | None:
    """Return why this root cannot be captured. `is_differentiated` means that a backward passes through it, so that it
    need not be trained itself.
    """
    name = type(module).__name__
    if is_compiled(module) or any(is_compiled(child) for child in module.modules()):
        return f"{name} is compiled"
    if isinstance(module, torch.jit.ScriptModule):
        return f"{name} is scripted"
    if is_wrapper(module) or (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return "the training is spread over several devices or processes"
    parameters = list(module.parameters())
    places = {tensor.device for tensor in (*parameters, *module.buffers())}
    if len(places) != 1 or next(iter(places)).type != device_type:
        return f"{name} is on {', '.join(sorted(map(str, places)))}, not on one GPU"
    if device_type == "cuda" and next(iter(places)).index != torch.cuda.current_device():
        return f"{name} is on {next(iter(places))}, which is not the current GPU"
    if not is_differentiated and not any(parameter.requires_grad for parameter in parameters):
        return f"{name} has no parameter that is trained"
    if any(type(tensor) not in (torch.Tensor, torch.nn.Parameter) for tensor in (*parameters, *module.buffers())):
        return f"{name} holds tensor subclasses"
    if any(buffer.requires_grad for buffer in module.buffers()):
        return f"a buffer of {name} is trained"
    if any(isinstance(child, torch.nn.RNNBase) and child.dropout for child in module.modules()):
        return "dropout between recurrent layers draws from cuDNN's own random stream, which cannot be restored"
    return why_not_hooks(torch, module)


def why_not_hooks(torch: Any, module: Any) -> str | None:
    """A replay runs no Python. Only the root's own forward hooks run around it, and those of weight_norm beside it."""
    if any(getattr(torch.nn.modules.module, name, None) for name in GLOBAL_HOOKS):
        return "there are global module hooks, which a replay would not call"
    for child in module.modules():
        names = MODULE_HOOKS[2:] if child is module else MODULE_HOOKS
        hooks = sum(len(getattr(child, name, None) or ()) for name in names)
        norms = len(weight_norms(child))
        if hooks > norms or (norms and child is module):
            return f"{type(child).__name__} has hooks, which a replay would not call"
    for parameter in module.parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            return "parameters have gradient hooks"
    return None


def has_own_hooks(torch: Any, module: Any) -> bool:
    """Whether hooks run around the root's forward, so that it must be called as a module."""
    everywhere = torch.nn.modules.module
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or everywhere._global_forward_hooks
        or everywhere._global_forward_pre_hooks
    )


def replayed_optimizers(torch: Any) -> tuple[Any, ...]:
    optim = torch.optim
    return optim.SGD, optim.Adam, optim.AdamW, optim.RMSprop, optim.Adadelta, optim.Adagrad


def why_not_optimizer(torch: Any, optimizer: Any) -> str | None:
    """Return why a step cannot be replayed to the bit: all of its arithmetic must be on the device."""
    kind, name = type(optimizer), type(optimizer).__name__
    groups = optimizer.param_groups
    if kind not in replayed_optimizers(torch):
        return f"{name} is not one of {', '.join(known.__name__ for known in replayed_optimizers(torch))}"
    if kind in (torch.optim.Adam, torch.optim.AdamW) and not all(group.get("fused") for group in groups):
        return f"{name} is not fused and counts its steps on the host (see fused-optimizer)"
    if any(group.get("lr_decay") for group in groups):
        return f"the learning rate of {name} depends on the number of the step"
    if any(group.get("differentiable") for group in groups):
        return f"{name} must stay differentiable"
    if not is_of_torch(kind.step):
        return f"the program has replaced the step of {name}"
    return f"{name} has hooks of its own, or a GradScaler works inside it" if is_hooked(optimizer) else None


def is_hooked(optimizer: Any) -> bool:
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return True
    held = vars(optimizer)
    return held.get("grad_scale") is not None or held.get("found_inf") is not None
