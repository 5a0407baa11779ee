"""Triton's kernels against torch.nn on tiny shapes; run with TRITON_INTERPRET=1."""

from __future__ import annotations

from tests.engine.nn.compared import one_case

if __name__ == "__main__":
    for kind in ("lstm", "gru"):
        one_case(kind, "triton:fma:r2:w4", 10, 3, 5e-6, steps=2)
        one_case(kind, "triton:dot:r16:w4", 5, 2, 5e-6, given=False, steps=2, bidirectional=True)
        print(kind)
