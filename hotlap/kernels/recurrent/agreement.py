"""Whether a variant computes what torch.nn does up to rounding; one that a compiler or GPU got wrong is never used.

Results near enough to cuDNN's are good. Those further away are compared with float64 once, because the fault may be
cuDNN's. They are good within the limit of float64, or no further from it than cuDNN, unless cuDNN itself is so far away
that it says nothing. All of it is host sync, once per shape.
"""

from __future__ import annotations

import logging
import math
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hotlap.kernels.recurrent import probe
from hotlap.kernels.recurrent.geometry import Variant
from hotlap.kernels.recurrent.precision import cudnn_uses_tf32

if TYPE_CHECKING:
    from hotlap.kernels.recurrent.key import Key

log = logging.getLogger("hotlap.kernels")
FLOAT32 = 2.0**-24
UNITS = {"float32": 2.0**-11, "float16": 2.0**-11, "bfloat16": 2.0**-8}  # of one rounding; for float32 that of TF32
SLACK = 8  # times the error of one rounding; two correct ways were less than one apart in float32
FAR = {"float32": 0.02}  # from float64: what is further away is no yardstick
FAR_LOW = 0.1  # bfloat16 and float16
_said: set[str] = set()


def limit(key: Key) -> float:
    """Return how far apart two correct ways may be, as a share of the largest element.

    Operands of products are rounded once in every layer, and float32 sums of many terms each add a little: those of a
    weight's gradient are as many as steps and batch rows. Errors of both kinds are independent, and grow as a root.
    """
    exact = key.dtype == "float32" and key.exact and not cudnn_uses_tf32()
    unit = FLOAT32 if exact else UNITS[key.dtype]
    terms = key.hidden + key.features + key.steps * key.batch
    return SLACK * (unit * math.sqrt(key.layers) + FLOAT32 * math.sqrt(terms))


def apart(found: list[Tensor], wanted: list[Tensor]) -> list[float]:
    """Return the largest difference of each tensor, as a share of its largest element; NaN if either has NaN."""
    pairs = zip(found, wanted, strict=True)
    ratios = [
        _difference(result, reference) / reference.abs().max().double().clamp(min=1e-30) for result, reference in pairs
    ]
    return [float(ratio) for ratio in torch.stack(ratios).tolist()]


def _difference(result: Tensor, reference: Tensor) -> Tensor:
    wide = torch.promote_types(torch.promote_types(result.dtype, reference.dtype), torch.float32)
    return torch.sub(result.to(wide), reference.to(wide)).abs_().max().double()


class AgreementReference:
    """What the variants of one shape are compared with."""

    def __init__(self, key: Key, layer: Any, x: Tensor, dy: Tensor) -> None:
        self.key, self.given, self.limit = key, (layer, x, dy), limit(key)
        self.theirs = [tensor.detach() for tensor in probe.by_torch(key, layer, x, dy)]

    @cached_property
    def _exact(self) -> tuple[list[Tensor], list[float]] | None:
        """The results in float64, and how far cuDNN is from them; None if memory does not suffice."""
        try:
            exact = probe.in_float64(self.key, *self.given)
            return exact, apart(self.theirs, exact)
        except torch.cuda.OutOfMemoryError:
            return None

    def why_not(self, ours: list[Tensor]) -> str | None:
        """Return why the results are wrong, or None if they are right. NaN is never right."""
        if all(distance <= self.limit for distance in apart(ours, self.theirs)):
            return None
        if self._exact is None:
            return "and memory is too small to check by float64 which is right"
        exact, theirs = self._exact
        mine, far = apart(ours, exact), FAR.get(self.key.dtype, FAR_LOW)
        pairs = zip(mine, theirs, strict=True)
        if all(distance <= self.limit or distance <= reference <= far for distance, reference in pairs):
            log.debug("cuDNN is %.1e from float64 for %s, ours %.1e", max(theirs), self.key.text, max(mine))
            return None
        return f"up to {max(mine):.1e} from float64 where cuDNN is {max(theirs):.1e} and {self.limit:.1e} is allowed"


def agreeing(key: Key, layer: Any, x: Tensor, dy: Tensor, variants: list[Variant]) -> list[Variant]:
    """Return the variants whose outputs and gradients are torch.nn's up to rounding."""
    if not variants:
        return []
    compared, found = AgreementReference(key, layer, x, dy), []
    for variant in variants:
        try:
            ours = [tensor.detach() for tensor in probe.by_ours(key, layer, x, dy, str(variant))]
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001 a kernel that cannot be built or launched here must not stop anyone
            say_once(f"{variant} cannot run here: {error}")
            continue
        why = compared.why_not(ours)
        _spoil(ours)
        if why is None:
            found.append(variant)
        else:
            say_once(
                f"{variant} gives different results from cuDNN for {key.text}, {why}; it is not used, please report it"
            )
    return found


def _spoil(results: list[Tensor]) -> None:
    """Fill results with NaN: the next variant may get this memory, and what it skips must not be right by chance."""
    for tensor in results:
        tensor.fill_(math.nan)


def say_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        log.warning("%s", text)
