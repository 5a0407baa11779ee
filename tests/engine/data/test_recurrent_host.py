"""The engine's LSTM and GRU for the CPU: torch's results and parameters, and torch itself for unsupported cases."""

import copy
import pickle

import pytest
import torch
from torch import nn

from hotlap.engine import recurrent_host
from hotlap.engine.recurrent import fast_layers
from hotlap.engine.recurrent_host import HostGRU, HostLSTM, become_ours, plain_layers

KINDS = [nn.LSTM, nn.GRU]


def twins(kind, *args, **options):
    torch.manual_seed(0)
    plain = kind(*args, **options).double()
    ours = copy.deepcopy(plain)
    become_ours(ours)
    return plain, ours


def states_of(states):
    return states if isinstance(states, tuple) else (states,)


def results(layer, x, hx, weight):
    """Outputs, last states, and the gradients of everything."""
    x = x.clone().requires_grad_()
    given = [state.clone().requires_grad_() for state in hx or ()]
    outputs, states = layer(x, None if hx is None else tuple(given) if len(given) == 2 else given[0])
    total = (outputs * weight).sum() + sum((state.square() * 0.3).sum() for state in states_of(states))
    gradients = torch.autograd.grad(total, [x, *given, *layer.parameters()])
    return [outputs, *states_of(states), *gradients]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"batch_first": True}, {"num_layers": 3}, {"bias": False, "num_layers": 2}])
@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize(("batch", "steps"), [(4, 7), (1, 1)])
def test_outputs_states_and_all_gradients_match_torch(kind, options, with_state, batch, steps):
    plain, ours = twins(kind, 3, 5, **options)
    x = torch.randn(batch, steps, 3, dtype=torch.float64)
    x = x if options.get("batch_first") else x.transpose(0, 1)
    shape = (plain.num_layers, batch, 5)
    hx = [torch.randn(shape, dtype=torch.float64) for _ in range(2 if kind is nn.LSTM else 1)] if with_state else None
    weight = torch.randn(*x.shape[:2], 5, dtype=torch.float64)
    for expected, got in zip(results(plain, x, hx, weight), results(ours, x, hx, weight), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [1, 2, 9])
def test_without_gradients_results_match_and_no_steps_are_stored(kind, steps, monkeypatch):
    plain, ours = twins(kind, 3, 5, 2)
    x = torch.randn(steps, 4, 3, dtype=torch.float64)
    made = []
    new_empty = torch.Tensor.new_empty
    monkeypatch.setattr(
        torch.Tensor, "new_empty", lambda self, *shape: made.append(shape[0]) or new_empty(self, *shape)
    )
    with torch.no_grad():
        for expected, got in zip(plain(x), ours(x), strict=True):
            for expected_state, state in zip(states_of(expected), states_of(got), strict=True):
                torch.testing.assert_close(state, expected_state, rtol=1e-10, atol=1e-12)
    assert sorted(made)[-2:] == [steps + 1] * 2  # the outputs of two layers, with the state before
    assert all(rows <= 2 for rows in sorted(made)[:-2])


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_step_alone_trains_like_torch(kind):
    plain, ours = twins(kind, 3, 5, batch_first=True)
    x = torch.randn(6, 8, 3, dtype=torch.float64)
    for _ in range(3):
        for layer in (plain, ours):
            layer(x)[0][:, -1].square().sum().backward()
            with torch.no_grad():
                for parameter in layer.parameters():
                    parameter -= 0.1 * parameter.grad
                    parameter.grad = None
    for expected, trained in zip(plain.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(expected, trained, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_between_layers_drops_in_training_only(kind):
    _, ours = twins(kind, 3, 50, 2, dropout=0.5)
    x = torch.randn(4, 2, 3, dtype=torch.float64)
    assert not torch.equal(ours(x)[0], ours(x)[0])
    ours.eval()
    assert torch.equal(ours(x)[0], ours(x)[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", ["bidirectional", "unbatched", "packed", "empty batch"])
def test_unsupported_cases_are_left_to_torch(kind, case):
    plain, ours = twins(kind, 3, 5, bidirectional=case == "bidirectional")
    x = torch.randn(7, 4, 3, dtype=torch.float64)
    x = {"unbatched": x[:, 0], "empty batch": x[:, :0]}.get(case, x)
    if case == "packed":
        x = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([7, 5, 3, 1]))
    expected, got = plain(x)[0], ours(x)[0]
    torch.testing.assert_close(got.data, expected.data, rtol=1e-12, atol=0)


def test_conversion_preserves_parameters_copies_and_pickles_and_skips_subclasses():
    class Own(nn.LSTM):
        pass

    model = nn.ModuleDict({"a": nn.LSTM(3, 5), "b": nn.GRU(3, 5), "c": Own(3, 5)})
    before = {name: parameter.data_ptr() for name, parameter in model.named_parameters()}
    layers = list(plain_layers(model))
    assert layers == [model["a"], model["b"]]
    for layer in layers:
        become_ours(layer)
    assert not list(plain_layers(model))
    assert {name: parameter.data_ptr() for name, parameter in model.named_parameters()} == before
    assert isinstance(model["a"], HostLSTM)
    assert isinstance(model["b"], HostGRU)
    assert type(model["c"]) is Own
    assert isinstance(model["a"], nn.LSTM)
    x = torch.randn(4, 2, 3)
    for other in (copy.deepcopy(model["a"]), pickle.loads(pickle.dumps(model["a"]))):
        assert torch.equal(other(x)[0], model["a"](x)[0])


def test_low_precision_is_left_to_torch():
    plain = nn.GRU(3, 5)
    ours = copy.deepcopy(plain)
    become_ours(ours)
    x = torch.randn(4, 2, 3)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(ours(x)[0], plain(x)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_mismatched_shapes_raise_the_errors_of_torch(kind):
    plain, ours = twins(kind, 3, 5)
    wrong_state = torch.zeros(1, 3, 5, dtype=torch.float64)
    state = (wrong_state, wrong_state) if kind is nn.LSTM else wrong_state
    for arguments in [(torch.zeros(7, 4, 2).double(),), (torch.zeros(7, 4, 3).double(), state)]:
        with pytest.raises((RuntimeError, ValueError)) as expected:
            plain(*arguments)
        with pytest.raises(type(expected.value)) as got:
            ours(*arguments)
        assert str(got.value) == str(expected.value)


@pytest.mark.parametrize("ours_faster", [True, False])
def test_the_faster_implementation_is_used(ours_faster, monkeypatch):
    times = (2.0, 1.0) if ours_faster else (1.0, 2.0)
    monkeypatch.setattr(recurrent_host, "seconds_of_both", lambda *_: times)
    model = nn.Sequential(nn.LSTM(3, 5))
    (line,) = fast_layers(model, torch.device("cpu"), 4, 7)
    assert type(model[0]) is (HostLSTM if ours_faster else nn.LSTM)
    assert line.startswith(f"LSTM on the CPU: {'the engine' if ours_faster else 'torch'}'s (")


@pytest.mark.parametrize("kind", KINDS)
def test_measuring_leaves_weights_gradients_and_random_numbers_as_they_were(kind):
    model = kind(3, 5, 2, dropout=0.5, batch_first=True)
    before, random = [parameter.clone() for parameter in model.parameters()], torch.get_rng_state()
    seconds = recurrent_host.seconds_of_both(model, 4, 6)
    assert all(duration > 0 for duration in seconds)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(random, torch.get_rng_state())
    assert model.dropout == 0.5
