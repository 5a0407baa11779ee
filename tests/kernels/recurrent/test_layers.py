"""Our LSTM and GRU replace torch.nn's: same parameters and outputs, and torch itself where unsupported."""

from __future__ import annotations

import copy
import io
import logging
import pickle

import pytest
import torch

from hotlap.engine import nn as ours
from hotlap.kernels.recurrent import modules, selection
from tests.kernels.recurrent.compared import BY, FEW, HIDDEN, KINDS, outcome, pair

pytestmark = pytest.mark.usefixtures("emulated")
kinds = pytest.mark.parametrize("kind", ["lstm", "gru"])


@kinds
def test_parameters_initialisation_and_state_dict_match_torch(kind):
    mine, theirs = KINDS[kind]
    torch.manual_seed(1)
    layer = mine(3, 4, 2, bidirectional=True)
    torch.manual_seed(1)
    reference = theirs(3, 4, 2, bidirectional=True)
    assert isinstance(layer, theirs)
    assert [name for name, _ in layer.named_parameters()] == [name for name, _ in reference.named_parameters()]
    assert all(torch.equal(layer.state_dict()[name], value) for name, value in reference.state_dict().items())
    reference.load_state_dict(layer.state_dict(), strict=True)
    layer.load_state_dict(reference.state_dict(), strict=True)
    by_position = (3, 4, 2, False, True, 0.5, True)
    assert repr(mine(*by_position)) == repr(theirs(*by_position))


@kinds
def test_copies_and_pickles_keep_working(kind):
    layer = KINDS[kind][0](FEW, HIDDEN, precision="ieee")
    x = torch.randn(5, 2, FEW)
    saved = io.BytesIO()
    torch.save(layer, saved)
    saved.seek(0)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), torch.load(saved, weights_only=False)):
        assert twin.precision == "ieee"
        with selection.forced(BY):
            assert torch.equal(twin(x)[0], layer(x)[0])


@kinds
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_accumulates_in_float32(kind, dtype):
    torch.manual_seed(0)
    layer, reference = pair(kind, FEW, HIDDEN)
    layer = layer.to(dtype)
    reference.load_state_dict(layer.state_dict())
    x = torch.randn(40, 4, FEW).to(dtype)
    with selection.forced(BY):
        found, gradients = outcome(layer, x, None)
    expected, exact = outcome(reference, x.double(), None)
    step = torch.finfo(dtype).eps
    assert all(tensor.dtype == dtype for tensor in (*found, *gradients))
    torch.testing.assert_close(found[0].double(), expected[0], rtol=2 * step, atol=2 * step)
    for gradient, exact_gradient in zip(gradients, exact, strict=True):
        assert (gradient.double() - exact_gradient).abs().max() <= 4 * step * exact_gradient.abs().max()


@kinds
def test_under_autocast_outputs_are_float16_like_cudnns(kind):
    """This holds for bfloat16 autocast too, where torch runs cuDNN's layers in float16."""
    torch.set_autocast_enabled("cuda", True)
    try:
        with selection.forced(BY):
            y, last = KINDS[kind][0](FEW, HIDDEN)(torch.randn(5, 2, FEW))
    finally:
        torch.set_autocast_enabled("cuda", False)
    assert {y.dtype, *(state.dtype for state in last)} == {torch.float16}


# When torch's own layer is used


def plain_and_ours(kind, given, hx=None, **options):
    layer = KINDS[kind][0](3, 4, **options)
    return layer(given, hx), KINDS[kind][1].forward(layer, given, hx)


@kinds
def test_on_a_cpu_torchs_path_is_taken_and_reported_once(kind, caplog, monkeypatch):
    monkeypatch.setattr(modules, "_reported", set())
    caplog.set_level(logging.DEBUG, "hotlap.kernels")
    x = torch.randn(5, 2, 3)
    for _ in range(3):
        found, expected = plain_and_ours(kind, x)
        assert torch.equal(found[0], expected[0])
    name = KINDS[kind][0].__name__
    assert [record.message for record in caplog.records] == [f"{name} uses torch.nn's path: on cpu"]


@kinds
def test_packed_sequences_are_left_to_torch(kind):
    packed = torch.nn.utils.rnn.pack_padded_sequence(torch.randn(5, 2, 3), torch.tensor([5, 3]))
    with selection.forced(BY):
        found, expected = plain_and_ours(kind, packed)
    assert torch.equal(found[0].data, expected[0].data)
    assert torch.equal(found[0].batch_sizes, expected[0].batch_sizes)


class Named(torch.Tensor):
    """A tensor that may mean more than its numbers."""


@kinds
@pytest.mark.parametrize(
    ("given", "why"),
    [
        (torch.randn(5, 0, 3), "no inputs"),
        (torch.randn(5, 2, 3).as_subclass(Named), "not a plain tensor"),
        (torch.nn.utils.rnn.pack_sequence([torch.randn(5, 3)]), "packed sequences"),
    ],
)
def test_unsupported_inputs_are_left_to_torch_and_each_reason_is_reported_once(kind, given, why, caplog, monkeypatch):
    monkeypatch.setattr(modules, "_reported", set())
    caplog.set_level(logging.DEBUG, "hotlap.kernels")
    layer = KINDS[kind][0](3, 4)
    for _ in range(2):
        with selection.forced(BY):
            found = layer(given)
        assert str(found) == str(KINDS[kind][1].forward(layer, given))
    assert [record.message for record in caplog.records] == [f"{KINDS[kind][0].__name__} uses torch.nn's path: {why}"]


@kinds
def test_weights_of_mixed_types_raise_what_torch_raises(kind):
    """Kernels read raw memory: a weight of another type would be read as if it were float32."""
    layer, x = KINDS[kind][0](FEW, HIDDEN), torch.randn(5, 2, FEW)
    with selection.forced(BY):
        layer(x)
        layer.bias_hh_l0 = torch.nn.Parameter(torch.zeros(len(layer.bias_hh_l0), dtype=torch.float64))
        with pytest.raises((RuntimeError, ValueError)) as mine:
            layer(x)
    with pytest.raises((RuntimeError, ValueError)) as theirs:
        KINDS[kind][1].forward(layer, x)
    assert str(mine.value) == str(theirs.value)


@kinds
def test_a_layer_follows_changes_of_its_settings(kind):
    """A path once chosen is reused only for identical calls."""
    torch.manual_seed(0)
    layer, x = KINDS[kind][0](FEW, HIDDEN, 2, dropout=0.5), torch.randn(5, 2, FEW)
    with selection.forced(BY):
        trained = layer(x)[0]
        assert not torch.equal(layer(x)[0], trained)
        layer.eval()
        for _ in range(2):
            torch.testing.assert_close(layer(x)[0], KINDS[kind][1].forward(layer, x)[0])
        layer.batch_first = True
        torch.testing.assert_close(layer(x)[0], KINDS[kind][1].forward(layer, x)[0])
        layer.double()
        torch.testing.assert_close(layer(x.double())[0], KINDS[kind][1].forward(layer, x.double())[0])
    assert torch.equal(layer(x.double())[0], KINDS[kind][1].forward(layer, x.double())[0])


@kinds
@pytest.mark.parametrize("shape", [(5, 2, 7), (3,), (1, 2, 3, 4)])
def test_inputs_of_a_wrong_shape_raise_what_torch_raises(kind, shape):
    with selection.forced(BY), pytest.raises((RuntimeError, ValueError)) as mine:
        KINDS[kind][0](3, 4)(torch.randn(shape))
    with pytest.raises((RuntimeError, ValueError)) as theirs:
        KINDS[kind][1](3, 4)(torch.randn(shape))
    assert str(mine.value) == str(theirs.value)


@kinds
def test_states_of_a_wrong_shape_raise_what_torch_raises(kind):
    wrong = torch.zeros(1, 9, 4)
    hx = (wrong, wrong) if kind == "lstm" else wrong
    with selection.forced(BY), pytest.raises(RuntimeError, match=r"Expected hidden"):
        KINDS[kind][0](3, 4)(torch.randn(5, 2, 3), hx)


@kinds
def test_states_of_another_type_raise_what_torch_raises(kind):
    """This holds even after a call without states used our kernels."""
    layer, x = KINDS[kind][0](FEW, HIDDEN), torch.randn(5, 2, FEW)
    other = torch.zeros(1, 2, HIDDEN, dtype=torch.float64)
    hx = (other, other) if kind == "lstm" else other
    with selection.forced(BY):
        layer(x)
        with pytest.raises((RuntimeError, ValueError)) as mine:
            layer(x, hx)
    with pytest.raises((RuntimeError, ValueError)) as theirs:
        KINDS[kind][1].forward(layer, x, hx)
    assert str(mine.value) == str(theirs.value)


def test_rejects_projections_when_the_layer_is_made():
    with pytest.raises(ValueError, match="proj_size"):
        ours.LSTM(3, 4, proj_size=2)
    with pytest.raises(ValueError, match="proj_size"):
        ours.LSTM(3, 4, 1, True, False, 0.0, False, 2)


@kinds
def test_rejects_an_unknown_precision(kind):
    with pytest.raises(ValueError, match="'fp8' is not a precision; use 'tf32', 'ieee' or None"):
        KINDS[kind][0](3, 4, precision="fp8")


@kinds
def test_exact_products_follow_the_layer_or_cudnns_setting(kind, monkeypatch):
    made = {precision: KINDS[kind][0](3, 4, precision=precision) for precision in (None, "tf32", "ieee")}
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    assert [modules.is_exact(layer) for layer in made.values()] == [False, False, True]
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert [modules.is_exact(layer) for layer in made.values()] == [True, False, True]
