"""Layers computed by the CUDA kernels match torch.nn; the kernels run on the CPU, thread by thread."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hotlap.kernels.recurrent import agreement, direct, plans, probe, selection
from hotlap.kernels.recurrent.geometry import layout, parse
from hotlap.kernels.recurrent.key import Key
from hotlap.kernels.recurrent.stack import Shape
from tests.kernels.recurrent import emulating
from tests.kernels.recurrent.compared import BY, FEW, HIDDEN, KINDS, assert_alike, by_masks, outcome, pair, states

pytestmark = pytest.mark.usefixtures("emulated")
kinds = pytest.mark.parametrize("kind", ["lstm", "gru"])
IN_CLUSTERS = "cuda:fma:r3:c2:b1"  # leaves the recurrent weights to a large product
IN_TILES = "cuda:tile:r4:c1:b1:k2"
MANY = 17


@settings(max_examples=36, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(["lstm", "gru"]), by=st.sampled_from([BY, IN_CLUSTERS, IN_TILES]),
    features=st.sampled_from([FEW, MANY]), layers=st.integers(1, 3), bias=st.booleans(), both=st.booleans(),
    first=st.booleans(), initial=st.booleans(), steps=st.integers(1, 4), batch=st.integers(0, 5),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_outputs_and_all_gradients_match_torch(
    kind, by, features, layers, bias, both, first, initial, steps, batch, seed
):  # fmt: skip
    """A batch of 0 stands for an input without one."""
    torch.manual_seed(seed)
    options = {"num_layers": layers, "bias": bias, "bidirectional": both, "batch_first": first}
    layer, reference = pair(kind, features, HIDDEN, **options)
    shape = (batch, steps) if first else (steps, batch)
    x = torch.randn(*(shape if batch else (steps,)), features)
    hx = states(kind, layer, (batch,) if batch else ()) if initial else None
    assert_alike(kind, by, layer, reference, x, hx, 3e-6)


@kinds
def test_the_comparison_rejects_a_kernel_that_skips_rows(kind, monkeypatch):
    launch = emulating.Kernel.launch

    def too_few(kernel, blocks, threads, stream, given):
        cluster = parse(IN_CLUSTERS).cluster
        broken = str(getattr(kernel.found, "variant", "")) == IN_CLUSTERS and not kernel.found.backward
        launch(kernel, blocks - cluster * broken, threads, stream, given)

    key = Key(kind, 5, 4, MANY, HIDDEN, 2, 1, True, "float32", False, True)
    both = [parse(BY), parse(IN_CLUSTERS)]
    assert agreement.agreeing(key, *probe.made(key, "cpu"), both) == both
    monkeypatch.setattr(emulating.Kernel, "launch", too_few)
    assert agreement.agreeing(key, *probe.made(key, "cpu"), both) == both[:1]


@kinds
def test_products_in_uneven_parts_match_torch(kind, constants):
    constants(plans, ROWS_OF_A_PART=5)
    assert plans.parting(19, 4, 4) == plans.RowPartition(3, 6, 1)
    torch.manual_seed(0)
    layer, reference = pair(kind, MANY, HIDDEN)
    for given_state in (False, True):
        hx = states(kind, layer, (1,)) if given_state else None
        assert_alike(kind, IN_CLUSTERS, layer, reference, torch.randn(20, 1, MANY), hx, 3e-6)


@pytest.mark.parametrize("rows", [0, 1, 7, 64, 1000, 79800, 76649])
def test_the_parts_of_a_product_cover_all_rows(rows):
    found = plans.parting(rows, 256, 64)
    assert found.parts * found.each + found.rest == rows
    assert found.parts <= 64
    assert rows < 70000 or found.parts > 32
    assert rows != 79800 or found.rest == 0


def test_small_products_are_computed_inside_the_walk():
    """Products of few features and few units stay in the walk."""
    small = [layout(kind, 16, parse(BY), True, False, FEW) for kind in ("lstm", "gru")]
    assert [(kernel.features, kernel.summed) for kernel in small] == [(FEW, True)] * 2
    assert layout("lstm", 16, parse(BY), False, False, FEW).features == FEW
    assert layout("lstm", 16, parse(BY), False, False, MANY).features == 0
    for kind in ("lstm", "gru"):  # the upper layers of small ones, too
        assert [layout(kind, 16, parse(BY), back, False, 16).features for back in (False, True)] == [16, 16]
        assert [layout(kind, 64, parse(BY), back, False, 8).features for back in (False, True)] == [8, 8]
    assert layout("lstm", 64, parse(BY), False, False, 16).features == 0
    assert not layout("lstm", 64, parse(BY), True, False, FEW).summed
    assert not layout("lstm", 16, parse(IN_CLUSTERS), True, False, FEW).summed


@pytest.mark.parametrize(
    ("hidden", "features", "expected"),
    [
        (16, 100, [(True, True, True), (True, True, True)]),  # little is computed
        (64, 12, [(True, True, False), (False, False, False)]),  # little is computed of the inputs
        (64, 64, [(True, False, False), (False, False, False)]),  # rounding the program's inputs is most of the error
        (64, 65, [(False, False, False), (False, False, False)]),
    ],
)
def test_some_large_products_are_computed_in_float32(hidden, features, expected):
    shape = Shape("lstm", 2, 1, hidden, True, 0.0, False, "cuda:mma:r16:c1:b1")
    plan = plans.Plan(shape, 3, 2, features, 0)
    assert [(level.exact_forward, level.exact_inputs, level.exact) for level in (plan.first, plan.later)] == expected
    exact = plans.Plan(replace(shape, exact=True, variant="cuda:fma:r2:c1:b1"), 3, 2, features, 0)
    assert all(level.exact_forward and level.exact_inputs and level.exact for level in (exact.first, exact.later))


@kinds
def test_accepts_gradients_with_unusual_strides(kind):
    """The gradient of a sum is one expanded number, and rows of a slice of wider outputs lie apart."""
    torch.manual_seed(0)
    layer, reference = pair(kind, FEW, HIDDEN, batch_first=True)
    x = torch.randn(3, 4, FEW)

    def gradients(layer, x):
        wide = torch.cat((layer(x)[0], x), 2)
        return torch.autograd.grad(wide.sum() + wide[:, ::2, 1:].square().sum(), list(layer.parameters()))

    with selection.forced(BY):
        found = gradients(layer, x)
    for gradient, expected in zip(found, gradients(reference, x.double()), strict=True):
        torch.testing.assert_close(gradient.double(), expected, rtol=1e-4, atol=1e-5)


@kinds
@pytest.mark.parametrize("by", [BY, IN_TILES])
def test_the_same_input_gives_the_same_bits_even_in_a_second_backward(kind, by):
    torch.manual_seed(0)
    layer = KINDS[kind][0](FEW, HIDDEN, 2, dropout=0.5, bidirectional=True).eval()
    x, hx = torch.randn(4, 5, FEW), states(kind, layer, (5,))
    with selection.forced(by):
        first, second = outcome(layer, x, hx), outcome(layer, x, hx)
        y = layer.train()(x)[0]
        twice = [torch.autograd.grad(y.sum(), list(layer.parameters()), retain_graph=True) for _ in range(2)]
    for once, again in (*zip(first, second, strict=True), twice):
        assert all(torch.equal(*both) for both in zip(once, again, strict=True))


@kinds
def test_a_layer_first_called_in_inference_mode_still_trains(kind):
    direct._nothing.cache_clear()
    layer, x = KINDS[kind][0](FEW, HIDDEN), torch.randn(4, 5, FEW)
    with selection.forced(BY):
        with torch.inference_mode():
            first = layer(x)[0]
        second = layer(x)[0]
        second.sum().backward()
    assert torch.equal(first, second)
    assert all(parameter.grad is not None for parameter in layer.parameters())


@kinds
def test_no_two_gradients_share_memory(kind):
    layer = KINDS[kind][0](FEW, HIDDEN)
    with selection.forced(BY):
        layer(torch.randn(4, 5, FEW))[0].sum().backward()
    places = {parameter.grad.untyped_storage().data_ptr() for parameter in layer.parameters()}
    assert len(places) == len(list(layer.parameters()))


@kinds
def test_only_the_requested_gradients_are_computed(kind, spied):
    backwards = spied(direct, "backward")
    layer = KINDS[kind][0](FEW, HIDDEN)
    x, hx = torch.randn(4, 5, FEW), states(kind, layer, (5,))
    with selection.forced(BY):
        layer(x, hx)[0].sum().backward()
        layer(x.requires_grad_(), hx)[0].sum().backward()
    assert [tuple(call.args[4]) for call in backwards] == [(False, False, False), (True, False, False)]
    assert x.grad.shape == x.shape


@kinds
def test_rejects_second_derivatives(kind):
    layer = KINDS[kind][0](FEW, HIDDEN)
    with selection.forced(BY):
        y = layer(torch.randn(4, 5, FEW))[0]
        (gradient,) = torch.autograd.grad(y.sum(), layer.weight_hh_l0, create_graph=True)
        with pytest.raises(RuntimeError, match="no second derivatives"):
            gradient.sum().backward()


@kinds
def test_large_products_are_not_autocast(kind, monkeypatch):
    """Neither the forward nor a backward called under autocast casts them; outputs are float16, like cuDNN's."""
    seen = []
    in_parts, mm = direct.in_parts, torch.mm
    monkeypatch.setattr(
        direct, "in_parts", lambda *given: seen.append(torch.is_autocast_enabled("cuda")) or in_parts(*given)
    )
    monkeypatch.setattr(torch, "mm", lambda *a, **b: seen.append(torch.is_autocast_enabled("cuda")) or mm(*a, **b))
    layer = KINDS[kind][0](MANY, HIDDEN)
    torch.set_autocast_enabled("cuda", True)
    try:
        with selection.forced(IN_CLUSTERS):
            y = layer(torch.randn(4, 5, MANY))[0]
            y.float().sum().backward()
        assert torch.is_autocast_enabled("cuda")
    finally:
        torch.set_autocast_enabled("cuda", False)
    assert y.dtype == torch.float16
    assert seen == [False, False, False]


@kinds
@pytest.mark.parametrize("dropout", [0.4, 1.0])
def test_dropout_between_layers_drops_scales_and_has_the_right_gradients(kind, dropout):
    torch.manual_seed(0)
    layer, reference = pair(kind, FEW, HIDDEN, num_layers=3, dropout=dropout)
    x = torch.linspace(-1, 1, 20 * FEW).view(4, 5, FEW)
    with selection.forced(BY):
        torch.manual_seed(3)
        y = layer(x)[0]
        found = [y.detach(), *torch.autograd.grad(y.square().sum(), list(layer.parameters()))]
        torch.testing.assert_close(layer.eval()(x)[0], KINDS[kind][1].forward(layer, x)[0])
    for tensor, expected in zip(found, by_masks(kind, reference, x, 3), strict=True):
        torch.testing.assert_close(tensor.double(), expected, rtol=1e-4, atol=1e-5)


@kinds
def test_a_layer_is_one_operation_of_a_compiled_graph(kind):
    torch._dynamo.reset()
    torch.manual_seed(0)
    layer, reference = pair(kind, FEW, HIDDEN, num_layers=2)
    x, hx = torch.randn(4, 5, FEW), states(kind, layer, (5,))
    with torch._dynamo.config.patch(allow_rnn=True):
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        compiled.num_layers, compiled.bidirectional = 2, False
        assert_alike(kind, BY, compiled, reference, x, hx, 3e-6)


@kinds
def test_the_registered_operation_keeps_torchs_contract(kind):
    layer = KINDS[kind][0](FEW, HIDDEN)
    flat = [weight.detach().requires_grad_() for weight in layer._flat_weights]
    x, h0 = torch.randn(3, 2, FEW, requires_grad=True), torch.randn(1, 2, HIDDEN)
    c0 = torch.randn(1, 2, HIDDEN) if kind == "lstm" else None
    given = (x, h0, c0, flat, kind, 1, 1, HIDDEN, True, 0.0, False, BY)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(torch.ops.hotlap.recurrent.default, given, test_utils=checks)
