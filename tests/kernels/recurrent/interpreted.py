"""Compares Triton's kernels with torch.nn on tiny shapes; run it with TRITON_INTERPRET=1."""

from __future__ import annotations

from triton.runtime import interpreter

from tests.kernels.recurrent.compared import one_case

_patched = interpreter._patch_lang_tensor


def _with_an_index(tensor, *scope):
    """Triton 3.6 calls int() on an array of one element, which numpy 2.4 refuses: no loop would run."""
    _patched(tensor, *scope)
    tensor.__index__ = lambda self: int(self.handle.data.item())


if __name__ == "__main__":
    interpreter._patch_lang_tensor = _with_an_index
    for kind in ("lstm", "gru"):
        one_case(kind, "triton:fma:r2:w4", 10, 3, 5e-6, steps=2)
        one_case(kind, "triton:dot:r16:w4", 5, 2, 5e-6, given=False, steps=2, bidirectional=True)
        print(kind)
