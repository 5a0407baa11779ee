"""Optimizers are switched to their fused form, and back where it cannot do what the user's form does."""

from __future__ import annotations

import copy
import functools
import pickle
import sys

import pytest
import torch
from torch import nn

import hotlap
from hotlap.catalog.fused_optimizer import proof
from hotlap.catalog.fused_optimizer.user_settings import stepping

LAST = torch.channels_last


@pytest.fixture
def enabled(monkeypatch):
    monkeypatch.setenv("HOTLAP_STRICT", "1")
    with hotlap.enable(None, with_=["fused-optimizer"]) as enabled:
        yield enabled


def parameter(gradient=1.0, shape=(3,)):
    weight = nn.Parameter(torch.ones(shape))
    weight.grad = None if gradient is None else torch.full(shape, gradient)
    return weight


def sparse(like):
    return torch.sparse_coo_tensor(torch.tensor([[0]]), torch.ones(1), like.shape)


def choice(optimizer):
    """Returns the form that the optimizer's steps see."""
    with stepping(optimizer):
        return shown(optimizer)


def shown(optimizer):
    return [(group["fused"], group["foreach"]) for group in optimizer.param_groups]


def test_refuses_a_gradient_that_is_sparse_at_the_first_step(enabled):
    weight = parameter()
    weight.grad = sparse(weight)
    optimizer = torch.optim.SGD([weight], lr=0.5)
    optimizer.step()
    assert weight.tolist() == [0.5, 1, 1]
    assert choice(optimizer) == [(None, None)]
    assert enabled.outcomes[0].status == "refused"
    assert enabled.outcomes[0].why == "SGD: gradients are sparse"


def test_a_gradient_that_becomes_sparse_later_steps_every_group_once(enabled):
    dense, other = parameter(), parameter()
    optimizer = torch.optim.SGD([{"params": [dense]}, {"params": [other]}], lr=0.25)
    for _ in range(4):
        optimizer.step()
    assert choice(optimizer) == [(True, False)] * 2
    other.grad = sparse(other)
    optimizer.step()
    assert dense.tolist() == [-0.25] * 3
    assert other.tolist() == [-0.25, 0, 0]
    assert choice(optimizer) == [(None, None)] * 2


def test_a_sparse_gradient_still_fails_where_the_user_chose_fused(enabled):
    torch.optim.SGD([parameter()], lr=0.1).step()
    weight = parameter()
    weight.grad = sparse(weight)
    with pytest.raises(RuntimeError, match="does not support sparse"):
        torch.optim.SGD([weight], lr=0.1, fused=True).step()


def test_a_parameter_gets_its_momentum_with_its_first_gradient(enabled):
    first, later = parameter(), parameter(None)
    optimizer = torch.optim.SGD([first, later], lr=0.25, momentum=0.5)
    optimizer.step()
    later.grad = torch.ones(3)
    for _ in range(2):
        optimizer.step()
    assert first.tolist() == [1 - 0.25 * (1 + 1.5 + 1.75)] * 3
    assert later.tolist() == [1 - 0.25 * (1 + 1.5)] * 3
    assert choice(optimizer) == [(True, False)]


def test_does_not_fuse_a_dampened_momentum_that_begins_later(enabled):
    def trained(**options):
        first, later = parameter(), parameter(None)
        optimizer = torch.optim.SGD([first, later], lr=0.25, momentum=0.5, dampening=0.25, **options)
        optimizer.step()
        later.grad = torch.ones(3)
        for _ in range(2):
            optimizer.step()
        return optimizer, first, later

    ours, plain = trained(), trained(foreach=False, fused=False)
    assert choice(ours[0]) == [(None, None)]
    assert all(torch.allclose(weight, expected) for weight, expected in zip(ours[1:], plain[1:], strict=True))


def by_hand(steps, last_from):
    """Steps image weights by hand with gradients that are contiguous from `last_from` on."""
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(4, 3, 2, 2).to(memory_format=LAST))
    optimizer = torch.optim.Adam([weight], lr=0.1)
    for step in range(steps):
        gradient = torch.randn(4, 3, 2, 2)
        weight.grad = gradient if step >= last_from else gradient.to(memory_format=LAST)
        optimizer.step()
    return weight, optimizer


@pytest.mark.parametrize(("steps", "last_from", "status"), [(2, 0, "refused"), (4, 2, "applied"), (20, 11, "applied")])
def test_does_not_fuse_gradients_in_another_memory_order(steps, last_from, status, monkeypatch):
    plain, _ = by_hand(steps, last_from)
    monkeypatch.setenv("HOTLAP_STRICT", "1")
    with hotlap.enable(None, with_=["fused-optimizer"]) as enabled:
        ours, optimizer = by_hand(steps, last_from)
        assert choice(optimizer) == [(None, None)]
    assert torch.allclose(ours, plain, atol=1e-5)
    assert enabled.outcomes[0].status == status


def test_fuses_an_optimizer_that_has_its_state_from_the_start(enabled):
    ours = [parameter(), parameter(0.5)]
    optimizer = torch.optim.Adagrad(ours, lr=0.1)
    optimizer.step()
    assert choice(optimizer) == [(True, False)]
    plain = [parameter(), parameter(0.5)]
    torch.optim.Adagrad(plain, lr=0.1, foreach=False, fused=False).step()
    assert all(torch.allclose(weight, expected) for weight, expected in zip(ours, plain, strict=True))
    other = torch.optim.Adagrad([parameter()], lr=0.1)
    other.state[other.param_groups[0]["params"][0]]["step"] = torch.tensor(0.0, dtype=torch.float64)
    other.step()
    assert choice(other) == [(None, None)]


def test_ignores_the_stride_of_a_dimension_of_size_one(enabled):
    weight = nn.Parameter(torch.ones(4, 1, 3, 3))
    weight.grad = torch.ones(4, 1, 3, 3).as_strided((4, 1, 3, 3), (9, 1, 3, 1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    optimizer.step()
    assert choice(optimizer) == [(True, False)]


def test_a_saved_state_holds_the_users_choice(enabled):
    optimizer = torch.optim.Adam([parameter()], lr=0.1, foreach=True)
    optimizer.step()
    saved = optimizer.state_dict()
    assert (saved["param_groups"][0]["fused"], saved["param_groups"][0]["foreach"]) == (None, True)
    assert saved["state"][0]["exp_avg"] is next(iter(optimizer.state.values()))["exp_avg"]
    assert choice(optimizer) == [(True, False)]
    optimizer.add_param_group({"params": [parameter()]})
    assert [group["foreach"] for group in optimizer.state_dict()["param_groups"]] == [True, True]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda optimizer: pickle.loads(pickle.dumps(optimizer))])
def test_copies_and_the_repr_show_the_users_choice(copied, enabled):
    optimizer = torch.optim.Adam([parameter()], lr=0.1)
    optimizer.step()
    other = copied(optimizer)
    assert choice(optimizer) == [(True, False)]
    assert choice(other) == [(None, None)]
    assert shown(optimizer) == [(None, None)]
    assert "fused: None" in repr(optimizer)
    optimizer.step()
    other.step()


def test_the_groups_show_the_users_choice_after_each_step_even_a_failed_one(enabled):
    weight = parameter()
    optimizer = torch.optim.Adam([weight], lr=0.1)
    seen = []
    optimizer.register_step_post_hook(lambda optimizer, *_: seen.append(shown(optimizer)))
    optimizer.step()
    with pytest.raises(ZeroDivisionError):
        optimizer.step(lambda: 1 / 0)
    optimizer.step()
    assert shown(optimizer) == [(None, None)]
    assert seen == [[(True, False)]] * 2


def test_respects_a_choice_made_between_two_steps(enabled):
    optimizer = torch.optim.Adam([parameter()], lr=0.1)
    optimizer.step()
    optimizer.param_groups[0]["foreach"] = True
    optimizer.step()
    assert choice(optimizer) == [(None, True)]


def test_a_capturable_optimizer_on_the_host_still_fails(enabled):
    optimizer = torch.optim.Adam([parameter()], lr=0.1, capturable=True)
    with pytest.raises(AssertionError, match="capturable"):
        optimizer.step()


def test_a_running_optimizer_stays_fused_after_loading_a_state(enabled):
    optimizer = torch.optim.Adam([parameter()], lr=0.1)
    optimizer.step()
    loaded = optimizer.state_dict()
    loaded["param_groups"][0].update(foreach=True, lr=0.2)
    optimizer.load_state_dict(loaded)
    optimizer.step()
    assert choice(optimizer) == [(True, False)]
    saved = optimizer.state_dict()["param_groups"][0]
    assert (saved["fused"], saved["foreach"], saved["lr"]) == (None, True, 0.2)


def test_does_not_fuse_a_state_loaded_in_another_memory_order(enabled):
    _, optimizer = by_hand(5, 9)
    assert choice(optimizer) == [(True, False)]
    saved = optimizer.state_dict()
    saved["state"][0]["exp_avg"] = saved["state"][0]["exp_avg"].contiguous()
    optimizer.load_state_dict(saved)
    optimizer.step()
    assert choice(optimizer) == [(None, None)]


def test_steps_with_a_closure_are_unchanged(enabled):
    weight = parameter(None)
    optimizer = torch.optim.SGD([weight], lr=0.5)

    def closure():
        optimizer.zero_grad()
        loss = weight.sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 3
    assert weight.tolist() == [0.5] * 3


def test_closing_restores_the_users_choice():
    sgd = torch.optim.SGD.__module__
    before = dict(vars(__import__(sgd, fromlist=["sgd"])))
    with hotlap.enable(None, with_=["fused-optimizer"]):
        optimizer = torch.optim.Adam([parameter()], lr=0.1)
        optimizer.step()
        assert choice(optimizer) == [(True, False)]
    assert choice(optimizer) == [(None, None)]
    assert dict(vars(__import__(sgd, fromlist=["sgd"]))) == before
    optimizer.step()


def test_torch_itself_clips_all_gradients_at_once(spied):
    """For that reason no entry does it; a torch that no longer does fails here."""
    norms = spied(torch, "_foreach_norm")
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))
    model(torch.randn(2, 4)).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    assert [len(call.args[0]) for call in norms] == [4]


KINDS = {
    "Adam": (torch.optim.Adam, {}),
    "AdamW, amsgrad": (torch.optim.AdamW, {"amsgrad": True}),
    "SGD, Nesterov": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    "SGD": (torch.optim.SGD, {"weight_decay": 0.1}),
    "Adagrad": (torch.optim.Adagrad, {}),
}


def trained(optimizer, steps, at=None, **options):
    """Trains a small model, calling `at(step)` before each step."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)), torch.randn(64, 8)
    optim = optimizer(model.parameters(), lr=1e-2, **options)
    for step in range(steps):
        if at is not None:
            at(step)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optim.zero_grad()
        loss.backward()
        optim.step()
    return loss.item()


@pytest.mark.parametrize("kind", KINDS)
def test_each_step_equals_the_programs_own_from_the_same_state(kind, enabled, constants, spied):
    constants(proof, EVERY=1)
    comparisons = spied(proof.Proof, "difference")
    optimizer, options = KINDS[kind]
    trained(optimizer, 100, **options)
    assert [comparison.returned for comparison in comparisons] == [None] * 100


@pytest.mark.parametrize("kind", KINDS)
def test_an_optimizer_already_in_use_is_fused_too(kind, monkeypatch):
    """hotlap run tries the entry mid-training, on and off again."""
    monkeypatch.setenv("HOTLAP_STRICT", "1")
    optimizer, options = KINDS[kind]
    plain, ours = trained(optimizer, 40, **options), []

    def switched(step):
        if step in (7, 23):
            ours.append(hotlap.enable(None, with_=["fused-optimizer"]))
        elif step in (15, 39):
            assert ours[-1].outcomes[0].status == "applied", ours[-1].outcomes[0]
            ours[-1].close()

    assert trained(optimizer, 40, switched, **options) == pytest.approx(plain, rel=1e-5)


def test_withdraws_a_kernel_that_computes_something_else(enabled, answering):
    expected = trained(torch.optim.Adam, 1)
    assert enabled.outcomes[0].status == "applied"
    answering(sys.modules["torch.optim.adam"], _fused_adam=None)
    trained(torch.optim.Adam, 2)
    assert expected == trained(torch.optim.Adam, 1)
    assert enabled.outcomes[0].status == "withdrawn"
    assert "a weight differs by" in enabled.outcomes[0].why


@pytest.mark.parametrize("around", [lambda step: lambda function: function, functools.wraps])
def test_a_step_that_the_program_has_replaced_is_called_only_by_the_program(around, enabled, monkeypatch):
    calls, torchs = [], torch.optim.Adam.step

    @around(torchs)
    def counted(optimizer, closure=None):
        calls.append(optimizer)
        return torchs(optimizer, closure)

    monkeypatch.setattr(torch.optim.Adam, "step", counted)
    weight = parameter()
    optimizer = torch.optim.Adam([weight])
    for _ in range(4):
        optimizer.step()
    assert calls == [optimizer] * 4
    assert enabled.outcomes[0].status == "applied"


def test_a_closure_step_is_not_compared_using_stale_gradients(enabled, constants):
    constants(proof, EVERY=1)
    weight = parameter()
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = (weight * 5).sum()
        loss.backward()
        return loss

    for _ in range(4):
        optimizer.step(closure)
    assert enabled.outcomes[0].status == "applied"


def laid_anew(step, net, optimizer):
    if step == 8:
        net.to(memory_format=LAST)


def momenta_of_another_type(step, net, optimizer):
    if step == 8:
        for state in optimizer.state.values():
            for name in state.keys() & {"momentum_buffer"}:
                state[name] = state[name].bfloat16()


def a_state_of_its_own(step, net, optimizer):
    if step == 8:
        for weight, state in list(optimizer.state.items()):
            optimizer.state[weight] = {name: value.clone() for name, value in state.items()}


def gradients_of_another_type(step, net, optimizer):
    if step == 0 and hasattr(torch.Tensor, "grad_dtype"):
        for weight in net.parameters():
            weight.grad_dtype = torch.bfloat16


def a_hook_that_turns_gradients(step, net, optimizer):
    if step == 8:

        def turn(optimizer, args, kwargs):
            for weight in net.parameters():
                if weight.dim() == 2:
                    weight.grad = weight.grad.T.clone().T

        optimizer.register_step_pre_hook(turn)


def weights_of(kind, change):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 3), nn.Flatten(), nn.Linear(64, 3))
    given = {"momentum": 0.9} if kind == "SGD" else {}
    optimizer = getattr(torch.optim, kind)(net.parameters(), lr=0.01, **given)
    for step in range(20):
        change(step, net, optimizer)
        loss = net(torch.randn(5, 3, 8, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [weight.detach().double() for weight in net.parameters()]


CHANGES = (laid_anew, a_state_of_its_own, a_hook_that_turns_gradients)
FUSED = ("SGD", "Adam", "AdamW", "Adagrad")


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        *((kind, change) for kind in FUSED for change in CHANGES),
        ("SGD", momenta_of_another_type),
        ("SGD", gradients_of_another_type),
    ],
)
def test_steps_use_what_the_program_changes_between_them(kind, change, monkeypatch):
    before = weights_of(kind, change)
    monkeypatch.setenv("HOTLAP_STRICT", "1")
    with hotlap.enable(None, with_=["fused-optimizer"]):
        found = weights_of(kind, change)
    for start, end in zip(before, found, strict=True):
        torch.testing.assert_close(start, end, rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_a_graph_that_needs_the_weights_before_the_step_still_fails(kind, enabled):
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = getattr(torch.optim, kind)(net.parameters(), lr=0.1)
    for _ in range(5):
        outputs = net(torch.randn(2, 3))
        optimizer.zero_grad()
        outputs.mean().backward(retain_graph=True)
        optimizer.step()
    assert enabled.outcomes[0].status == "applied"
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        outputs.square().mean().backward()
