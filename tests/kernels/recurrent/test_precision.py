"""Large products use TF32 or not, as the layer requests, and the program's own setting is restored afterwards."""

from __future__ import annotations

import pytest
import torch

from hotlap.kernels.recurrent import precision
from hotlap.kernels.recurrent.precision import products


@pytest.fixture(autouse=True)
def as_if_built_for_cuda(constants):
    constants(precision, CUDA=True)
    yield
    torch.set_float32_matmul_precision("highest")


def settings():
    newer = getattr(torch._C, "_get_fp32_precision_getter", None)
    return torch._C._get_cublas_allow_tf32(), torch.get_float32_matmul_precision(), newer and newer("cuda", "matmul")


@pytest.mark.parametrize("own", ["highest", "high", "medium"])
@pytest.mark.parametrize("exact", [False, True])
def test_the_setting_applies_inside_and_is_restored_outside(own, exact):
    torch.set_float32_matmul_precision(own)
    before = settings()
    with products(exact):
        assert torch._C._get_cublas_allow_tf32() is not exact
    assert settings() == before


@pytest.mark.skipif(not hasattr(torch._C, "_get_fp32_precision_getter"), reason="needs torch 2.9")
@pytest.mark.parametrize("own", ["tf32", "ieee"])
@pytest.mark.parametrize("exact", [False, True])
def test_the_newer_setting_is_restored_too(own, exact):
    get, put = torch._C._get_fp32_precision_getter, torch._C._set_fp32_precision_setter
    before = get("cuda", "matmul")
    try:
        put("cuda", "matmul", own)
        with products(exact):
            assert get("cuda", "matmul") == ("ieee" if exact else "tf32")
        assert get("cuda", "matmul") == own
    finally:
        put("cuda", "matmul", before)


def test_a_build_without_cuda_is_left_alone(constants):
    constants(precision, CUDA=False)
    before = settings()
    with products(False):
        assert settings() == before
