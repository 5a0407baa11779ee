"""The CUDA kernels' own source, run on the CPU thread by thread, matches torch.nn."""

from __future__ import annotations

import shutil

import pytest
import torch

from hotlap.kernels.recurrent import selection
from hotlap.kernels.recurrent.candidates import Chip, likely
from hotlap.kernels.recurrent.geometry import SHARED_AT_MOST, layout, parse
from tests.kernels.recurrent import emulating
from tests.kernels.recurrent.compared import one_case, pair

H200 = Chip(132, (9, 0))
needs_compiler = pytest.mark.skipif(shutil.which(emulating.COMPILER) is None, reason="needs a C++ compiler")


@needs_compiler
@pytest.mark.parametrize(
    ("kind", "variant", "hidden", "batch"),
    [
        ("lstm", "cuda:fma:r2:c1:b1", 10, 3),
        ("gru", "cuda:fma:r3:c2:b1:k2", 29, 4),
        ("lstm", "cuda:mma:r16:c2:b1", 24, 17),
        ("gru", "cuda:mma:r8:c1:b1", 16, 9),
        ("lstm", "cuda:fma:r16:c1:b1", 10, 17),  # threads with several elements, of several units
        ("lstm", "cuda:mma:r32:c2:b1", 24, 3),  # of one unit
        ("gru", "cuda:mma:r32:c2:b1", 24, 33),  # and too many to be stored late
        ("lstm", "cuda:tile:r4:c1:b1", 10, 3),
        ("gru", "cuda:tile:r4:c1:b1:k2", 29, 6),
        ("lstm", "cuda:tile:r8:c2:b1:k2", 24, 9),
        ("gru", "cuda:tile:r8:c1:b1", 16, 9),
        ("lstm", "cuda:tile:r16:c1:b1:k2", 20, 17),
    ],
)
def test_cuda_kernels_match_torch(monkeypatch, kind, variant, hidden, batch):
    emulating.on_cpu(monkeypatch)
    one_case(kind, variant, hidden, batch, 2e-6)
    one_case(kind, variant, hidden, 1, 2e-6, given=False, bidirectional=True)
    one_case(kind, variant, hidden, 2, 2e-6, num_layers=2, bias=False)


@needs_compiler
@pytest.mark.parametrize("variant", ["cuda:mma:r16:c2:b1", "cuda:tile:r8:c2:b1:k2"])
def test_tensor_cores_are_off_by_the_rounding_of_tf32_and_no_more(monkeypatch, variant):
    emulating.on_cpu(monkeypatch, round_to_tf32=True)
    one_case("lstm", variant, 24, 3, 2e-3)
    with pytest.raises(AssertionError, match="is off by"):
        one_case("lstm", variant, 24, 3, 2e-6)


@needs_compiler
@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize("features", [3, 4, 6, 11])
@pytest.mark.parametrize("variant", ["cuda:tile:r4:c1:b1", "cuda:tile:r4:c1:b1:k2", "cuda:tile:r8:c1:b1"])
def test_tiles_do_not_round_inputs(monkeypatch, kind, features, variant):
    """A single step from a zero state depends on the inputs alone; backward, only the gates' gradients are rounded."""
    emulating.on_cpu(monkeypatch, round_to_tf32=True)
    torch.manual_seed(0)
    layer, reference = pair(kind, features, 12)
    assert layout(kind, 12, parse(variant), True, False, features).features == features
    x = torch.randn(1, 9, features)
    with selection.forced(variant):
        y = layer(x)[0]
        (gradient,) = torch.autograd.grad(y.sum(), [layer.weight_ih_l0])
    exact = reference(x.double())[0]
    (expected,) = torch.autograd.grad(exact.sum(), [reference.weight_ih_l0])
    assert float((y - exact).detach().abs().max()) < 1e-6
    assert float((gradient - expected).norm() / expected.norm()) < 0.6 * 2.0**-11


def test_tiles_are_for_tf32_only_and_for_rows_that_fill_them():
    tile = parse("cuda:tile:r4:c1:b1")
    assert layout("lstm", 64, tile, True, exact=False) is not None
    assert layout("lstm", 64, tile, True, exact=True) is None
    assert layout("lstm", 64, parse("cuda:tile:r6:c1:b1"), True, exact=False) is None
    assert layout("lstm", 64, parse("cuda:tile:r4:c1:b1:k3"), True, exact=False) is None
    assert layout("lstm", 128, tile, True, exact=False) is None  # its weights fill the registers of two


@pytest.mark.parametrize(("kind", "rows"), [("lstm", "r4"), ("gru", "r8")])
def test_finer_tiles_have_twice_the_threads(kind, rows):
    coarse, finer = (
        layout(kind, 64, parse(f"cuda:tile:{rows}:c1:b1{k}"), True, False, 6) for k in ("", ":k2")
    )  # fmt: skip
    assert (coarse.threads, finer.threads) == (128, 256)
    assert finer.features == 6


# Which variants fit a shape


@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize("hidden", [10, 16, 64, 128, 256])
@pytest.mark.parametrize("batch", [32, 200, 8192])
@pytest.mark.parametrize("exact", [False, True])
def test_every_shape_of_the_benchmark_has_variants_that_fit(kind, hidden, batch, exact):
    found = likely(kind, hidden, batch, exact, H200)
    assert 1 < len(found) <= 5
    assert not exact or all(variant.product == "fma" for variant in found)
    for variant in found:
        for backward in (False, True):
            made = layout(kind, hidden, variant, backward, exact)
            assert made.threads % 32 == 0
            assert made.threads <= 1024
            assert made.shared_bytes <= SHARED_AT_MOST
            assert made.padded >= hidden
            assert made.padded % variant.cluster == 0


def test_without_clusters_only_small_layers_fit():
    assert all(variant.cluster == 1 for variant in likely("lstm", 64, 200, False, Chip(108, (8, 0))))
    assert likely("lstm", 256, 200, False, Chip(108, (8, 0))) == []


@pytest.mark.parametrize(("kind", "parts"), [("lstm", (2, 8)), ("gru", (4, 12))])
def test_a_finer_variant_takes_the_next_possible_number_of_parts(kind, parts):
    """The gradient of a GRU with 16 units sums over 48 gates in groups of four, which cannot make 8 parts."""
    variant = parse("cuda:fma:r2:c1:b1:k2")
    assert tuple(layout(kind, 16, variant, backward, False).split for backward in (False, True)) == parts


def test_an_oversized_layer_fits_nowhere():
    assert likely("lstm", 2048, 200, False, H200) == []


@pytest.mark.parametrize(
    "text",
    [
        "cuda:fma:r2:c1:b1",
        "cuda:mma:r16:c4:b2",
        "cuda:fma:r1:c1:b1:k2",
        "cuda:tile:r4:c1:b1:k2",
    ],
)
def test_a_variant_round_trips_through_its_name(text):
    assert str(parse(text)) == text


@pytest.mark.parametrize("text", ["", "torch", "cuda", "cuda:dot:r2", "triton:fma:r2", "cuda:fma:rows", "cudnn"])
def test_rejects_an_invalid_variant_name(text):
    with pytest.raises(ValueError, match="not a variant"):
        parse(text)
