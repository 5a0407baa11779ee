"""A variant is used only where it agrees with torch.nn; cuDNN's own rounding does not count against it."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch

from hotlap.kernels.recurrent import agreement, precision, probe
from hotlap.kernels.recurrent.geometry import parse
from hotlap.kernels.recurrent.key import Key

KEY = Key("lstm", 3, 5, 2, 4, 1, 1, True, "float32", False, True)
ONE, OTHER, THIRD = (parse(name) for name in ("cuda:fma:r4:c8:b1", "cuda:mma:r16:c8:b1", "cuda:fma:r1:c1:b1"))
kinds = pytest.mark.parametrize("kind", ["lstm", "gru"])


def off(results, by):
    """The same results except for one element of the gradient of the recurrent weights."""
    y, of_x, of_h, *others = (result.detach().clone() for result in results)
    of_h.view(-1)[0] += by * of_h.abs().max()
    return [y, of_x, of_h, *others]


def nothing(results):
    return [torch.zeros_like(result) for result in results]


@pytest.fixture
def ways(monkeypatch):
    """Sets how far each variant and cuDNN are off; a function may instead replace the right results."""
    by_torch = probe.by_torch
    monkeypatch.setattr(agreement, "_said", set())

    class Ways:
        cudnn, ours, exact = 0.0, {}, 0

        @staticmethod
        def agreeing(key, *variants):
            return agreement.agreeing(key, *probe.made(key, "cpu"), list(variants))

    def changed(how, results):
        return how(results) if callable(how) else off(results, how) if how else results

    def torchs(key, layer, x, dy):
        right = by_torch(key, layer, x, dy)
        Ways.exact += x.dtype == torch.float64
        return right if x.dtype == torch.float64 else changed(Ways.cudnn, right)

    def ours(key, layer, x, dy, variant):
        return changed(Ways.ours.get(variant, 0.0), by_torch(key, layer, x, dy))

    monkeypatch.setattr(probe, "by_torch", torchs)
    monkeypatch.setattr(probe, "by_ours", ours)
    return Ways


@kinds
def test_a_variant_with_different_results_is_skipped_for_the_next(kind, ways, caplog):
    def fails(results):
        raise RuntimeError("no such kernel")

    ways.ours = {str(ONE): 0.01, str(THIRD): fails}
    assert ways.agreeing(replace(KEY, kind=kind), ONE, OTHER, THIRD) == [OTHER]
    assert f"{ONE} gives different results from cuDNN for kind={kind}" in caplog.text
    assert f"{THIRD} cannot run here: no such kernel" in caplog.text


@kinds
@pytest.mark.parametrize("wrong", [0.005, 0.1, float("nan"), float("inf"), nothing])
@pytest.mark.parametrize("cudnn", [0.0, -0.004])
def test_rejects_a_wrong_kernel_however_wrong(kind, wrong, cudnn, ways):
    ways.ours, ways.cudnn = {str(ONE): wrong}, cudnn
    assert ways.agreeing(replace(KEY, kind=kind), ONE) == []


@kinds
def test_float64_decides_once_where_cudnn_is_off(kind, ways, caplog):
    """cuDNN is off by 0.01 here; variants no further from float64 are accepted, those further away are not."""
    key = replace(KEY, kind=kind)
    ways.cudnn, ways.ours = 0.01, {str(OTHER): -0.008, str(THIRD): -0.012}
    with caplog.at_level(logging.DEBUG):
        assert ways.agreeing(key, ONE, OTHER, THIRD) == [ONE, OTHER]
    assert ways.exact == 1
    assert f"{THIRD} gives different results from cuDNN" in caplog.text
    assert f"cuDNN is 1.0e-02 from float64 for {key.text}" in caplog.text


@pytest.mark.parametrize("wrong", [0.5, nothing])
def test_rejects_a_distant_result_even_where_cudnn_is_far_from_float64(wrong, ways):
    ways.cudnn, ways.ours = 1.4, {str(ONE): wrong}
    assert ways.agreeing(KEY, ONE, OTHER) == [OTHER]


def test_float64_is_not_run_for_variants_near_cudnn(ways):
    ways.ours = {str(ONE): 1e-3, str(OTHER): 2e-3}
    assert ways.agreeing(KEY, ONE, OTHER) == [ONE, OTHER]
    assert ways.exact == 0


def test_right_results_are_erased_before_their_memory_is_reused(ways):
    seen = []

    def results(right):
        seen.extend(result.detach().clone() for result in right)
        return seen

    ways.ours = {str(ONE): results}
    assert ways.agreeing(KEY, ONE) == [ONE]
    assert len(seen) == 5
    assert all(result.isnan().all() for result in seen)


def test_rejects_a_doubtful_variant_without_memory_for_float64(ways, monkeypatch, caplog):
    def too_large(*_):
        raise torch.cuda.OutOfMemoryError

    monkeypatch.setattr(probe, "in_float64", too_large)
    ways.ours = {str(ONE): 0.01}
    assert ways.agreeing(KEY, ONE, OTHER) == [OTHER]
    assert "memory is too small to check by float64 which is right" in caplog.text


def test_without_gradients_only_outputs_are_compared(ways):
    ways.ours = {str(ONE): lambda results: [results[0] + 0.1], str(OTHER): lambda results: results}
    with torch.no_grad():
        assert ways.agreeing(replace(KEY, backward=False), ONE, OTHER) == [OTHER]


def test_exact_layers_have_a_tighter_limit(ways, answering):
    """The limit is wider where cuDNN rounds to TF32, since precision="ieee" concerns only the one layer."""
    answering(agreement, cudnn_uses_tf32=False)
    ways.ours = {str(ONE): 5e-4}
    assert ways.agreeing(replace(KEY, exact=True), ONE) == []
    answering(agreement, cudnn_uses_tf32=True)
    assert ways.agreeing(replace(KEY, exact=True), ONE) == [ONE]


def test_the_limit_follows_precision_depth_and_shape(answering):
    answering(agreement, cudnn_uses_tf32=False)
    exact, low = replace(KEY, exact=True), replace(KEY, dtype="bfloat16")
    assert agreement.limit(exact) < 1e-5 < 3e-3 < agreement.limit(KEY) < 5e-3 < agreement.limit(low) < 0.04
    for key in (KEY, exact, low):
        assert agreement.limit(key) < agreement.limit(replace(key, layers=3)) < 2 * agreement.limit(key)
        assert agreement.limit(key) < agreement.limit(replace(key, steps=400))
    largest = replace(KEY, layers=3, batch=8192, steps=400, hidden=256, features=64)
    assert agreement.limit(largest) < agreement.FAR["float32"]


@kinds
def test_the_probe_layer_does_not_magnify_rounding(kind):
    """Weights from -0.1 to 0.1 in order did: an LSTM's float32 was 5e-4 from float64, and 0.7 after 200 steps."""
    key = replace(KEY, kind=kind, batch=2, steps=40, features=64, hidden=256, layers=3)
    layer, x, dy = probe.made(key, "cpu")
    exact = probe.in_float64(key, layer, x, dy)
    assert max(agreement.apart(probe.by_torch(key, layer, x, dy), exact)) < 1e-5


@kinds
def test_float64_is_computed_in_parts_of_the_batch(kind, constants):
    key = replace(KEY, kind=kind, batch=5, layers=2, directions=2)
    layer, x, dy = probe.made(key, "cpu")
    whole = probe.in_float64(key, layer, x, dy)
    constants(probe, STATES_AT_ONCE=2 * key.steps * key.hidden * 4)
    for found, expected in zip(probe.in_float64(key, layer, x, dy), whole, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_cudnn_is_assumed_to_round_when_settings_conflict(monkeypatch):
    class Settings:
        @property
        def allow_tf32(self):
            raise RuntimeError("mix of the legacy and new APIs")

    assert isinstance(precision.cudnn_uses_tf32(), bool)
    monkeypatch.setattr(torch.backends, "cudnn", Settings())
    assert precision.cudnn_uses_tf32()
