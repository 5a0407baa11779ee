"""Attention masks of which torch's transformer layers ask, at each call, whether they are causal.

For the answer they wait for the device. It is the same for as long as the mask is, so a capture uses the one of its
rehearsal, for masks that outlive a call and are no inputs. One that is computed anew each time cannot be captured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from hotlap.runtime.decline import EntryDeclined

DETECT = "_detect_is_causal_mask"


class CausalMasks:
    def __init__(self, torch: Any, inputs: list[Any], waiting: Callable[[], AbstractContextManager[Any]]) -> None:
        """`waiting()` allows to wait for the device."""
        self._torch, self._waiting = torch, waiting
        self._layers = torch.nn.modules.transformer
        self._inputs = {tensor.untyped_storage().data_ptr() for tensor in inputs}
        self._answers: dict[tuple[Any, ...], bool] = {}
        self._held: list[tuple[Any, int]] = []  # masks, whose memory stays their own, and their versions
        self._is_learning = True

    @contextmanager
    def answered(self) -> Iterator[None]:
        original = getattr(self._layers, DETECT, None)
        if original is None:
            yield
            return
        setattr(self._layers, DETECT, self._answering(original))
        try:
            yield
        finally:
            setattr(self._layers, DETECT, original)

    def learned(self) -> None:
        """Decline from now on if another mask appears."""
        self._is_learning = False

    def hold(self) -> bool:
        """Return whether no mask has been written into."""
        return all([mask._version == version for mask, version in self._held])  # noqa: C419 a list is faster

    def forget(self) -> None:
        self._answers, self._held = {}, []

    def _answering(self, original: Any) -> Any:
        def detect(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
            if is_causal is not None or mask is None or not self._may_last(mask):
                return bool(original(mask, is_causal, size))
            key = (mask.data_ptr(), mask.shape, mask.stride(), mask.dtype, mask._version, size)
            if key not in self._answers:
                if not self._is_learning:
                    raise EntryDeclined("forward waits for the device: a mask that it makes anew may be causal or not")
                with self._waiting():
                    self._answers[key] = bool(original(mask, None, size))
                self._held.append((mask, mask._version))
            return self._answers[key]

        return detect

    def _may_last(self, mask: Any) -> bool:
        if type(mask) is not self._torch.Tensor or mask.is_inference() or mask.requires_grad:
            return False
        return mask.untyped_storage().data_ptr() not in self._inputs
