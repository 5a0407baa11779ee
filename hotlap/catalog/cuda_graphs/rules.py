"""When graphs must not be used. Each rule gives the reason, or None."""

from __future__ import annotations

from typing import Any

from hotlap.patch.roots import is_compiled
from hotlap.runtime.decline import EntryDeclined
from hotlap.runtime.forwards import is_wrapper

MODULE_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GLOBAL_HOOKS = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
)


class Differs(EntryDeclined):
    """What was replayed so far may have been wrong."""


def why_not_root(torch: Any, module: Any, device_type: str, is_differentiated: bool = False) -> str | None:
    """`is_differentiated`: a backward leads through it, so that it need not be trained itself."""
    name = type(module).__name__
    if is_compiled(module) or any(is_compiled(child) for child in module.modules()):
        return f"{name} is compiled"
    if isinstance(module, torch.jit.ScriptModule):
        return f"{name} is scripted"
    if is_wrapper(module) or (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return "the training is spread over several devices or processes"
    parameters = list(module.parameters())
    places = {one.device for one in (*parameters, *module.buffers())}
    if len(places) != 1 or next(iter(places)).type != device_type:
        return f"{name} is on {', '.join(sorted(map(str, places)))}, not on one GPU"
    if device_type == "cuda" and next(iter(places)).index != torch.cuda.current_device():
        return f"{name} is on {next(iter(places))}, which is not the current GPU"
    if not is_differentiated and not any(parameter.requires_grad for parameter in parameters):
        return f"{name} has no parameter that is trained"
    if any(type(one) not in (torch.Tensor, torch.nn.Parameter) for one in (*parameters, *module.buffers())):
        return f"{name} holds tensors of a kind of their own"
    if any(buffer.requires_grad for buffer in module.buffers()):
        return f"a buffer of {name} is trained"
    if any(isinstance(child, torch.nn.RNNBase) and child.dropout for child in module.modules()):
        return "dropout between recurrent layers draws from a stream of cuDNN's own, which cannot be put back"
    return _why_not_hooks(torch, module)


def _why_not_hooks(torch: Any, module: Any) -> str | None:
    """A replay runs no Python. Only the root's own forward hooks run around it."""
    if any(getattr(torch.nn.modules.module, name, None) for name in GLOBAL_HOOKS):
        return "there are global module hooks, which a replay would not call"
    for child in module.modules():
        names = MODULE_HOOKS[2:] if child is module else MODULE_HOOKS
        if any(getattr(child, name, None) for name in names):
            return f"{type(child).__name__} has hooks, which a replay would not call"
    for parameter in module.parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            return "parameters have gradient hooks"
    return None


def has_own_hooks(torch: Any, module: Any) -> bool:
    """Hooks that run around the root's forward, so that it must be called as a module."""
    everywhere = torch.nn.modules.module
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or everywhere._global_forward_hooks
        or everywhere._global_forward_pre_hooks
    )


def why_not_optimizer(torch: Any, optimizer: Any) -> str | None:
    """A replayed step must be the user's step to the bit, so only where the step's arithmetic is all on the device."""
    kind, name = type(optimizer), type(optimizer).__name__
    groups = optimizer.param_groups
    if kind not in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        return f"{name} is none of SGD, Adam and AdamW"
    if kind is not torch.optim.SGD and not all(group.get("fused") for group in groups):
        return f"{name} is not fused and counts its steps on the host (see fused-optimizer)"
    if any(group.get("differentiable") for group in groups):
        return f"{name} must stay differentiable"
    return f"{name} has hooks of its own, or a GradScaler works inside it" if is_hooked(optimizer) else None


def is_hooked(optimizer: Any) -> bool:
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return True
    held = vars(optimizer)
    return held.get("grad_scale") is not None or held.get("found_inf") is not None
