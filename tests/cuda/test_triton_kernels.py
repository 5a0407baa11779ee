"""Triton's recurrent kernels match torch.nn in the interpreter, and compile. CUDA builds of torch include Triton."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from harness import environment

pytestmark = pytest.mark.cuda


def test_kernels_match_torch_in_the_interpreter():
    """A process of its own is needed, as Triton decides at import whether it interprets."""
    command = [sys.executable, "-m", "tests.kernels.recurrent.interpreted"]
    root, interpreting = Path(__file__).parents[2], environment(TRITON_INTERPRET="1")
    ran = subprocess.run(command, cwd=root, env=interpreting, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert ran.stdout.split() == ["lstm", "gru"]


@pytest.mark.parametrize("name", ["lstm_forward", "lstm_backward", "gru_forward", "gru_backward"])
def test_kernels_compile_for_sm_90(name, monkeypatch, tmp_path):
    """The kernels get a state but no biases; the compiler may reject what the interpreter runs."""
    import triton
    from triton.backends.compiler import GPUTarget

    from hotlap.kernels.recurrent import triton_kernels

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel = getattr(triton_kernels, name)
    fixed = {"HIDDEN": 10, "WIDE": 16, "ROWS": 2, "DOT": False, "PRECISION": "tf32", "KEEP": True}
    absent = {"c0": None, "bias_ih": None, "bias_hh": None, "dh_n": None, "dc_n": None}
    numbers = ("gates_row", "y_row", "dy_step", "dy_row", "steps", "batch", "reverse")
    constants = {argument: value for argument, value in {**fixed, **absent}.items() if argument in kernel.arg_names}
    types = {argument: "i32" if argument in numbers else "*fp32" for argument in kernel.arg_names}
    signature = {argument: "constexpr" if argument in constants else kind for argument, kind in types.items()}
    source = triton.compiler.ASTSource(fn=kernel, signature=signature, constexprs=constants)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    assert "sm_90" in made.asm["ptx"]
