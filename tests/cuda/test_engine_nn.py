"""Recurrent layers on a GPU: every kernel matches torch.nn in float64, in all the ways a program may use the layers."""

import copy
import math

import pytest
import torch
from catalog.compute_models import SERIES, Recurrent, train
from torch import nn

import hotlap
from hotlap.engine import nn as ours
from hotlap.kernels.recurrent import agreement, candidates, measurement, probe, selection
from hotlap.kernels.recurrent.key import Key
from tests.kernels.recurrent.compared import KINDS, assert_alike, by_masks, doubled, outcome, pair, states

pytestmark = pytest.mark.cuda
kinds = pytest.mark.parametrize("kind", ["lstm", "gru"])
EXACT, TF32 = 2e-5, 1e-2
VARIANTS = [
    ("cuda:fma:r1:c1:b1", 10), ("cuda:fma:r4:c1:b1", 64), ("cuda:fma:r2:c1:b1:k2", 16), ("cuda:fma:r3:c4:b1", 128),
    ("cuda:fma:r2:c8:b1", 256), ("cuda:fma:r4:c8:b1", 256), ("cuda:mma:r8:c1:b1", 16), ("cuda:mma:r32:c1:b1", 64),
    ("cuda:mma:r16:c2:b1", 128), ("cuda:mma:r8:c4:b1", 100), ("cuda:mma:r16:c8:b1", 256), ("cuda:mma:r8:c1:b2", 64),
    ("cuda:tile:r4:c1:b1", 64), ("cuda:tile:r4:c1:b1:k2", 64), ("cuda:tile:r8:c1:b1", 64),
    ("cuda:tile:r8:c1:b1:k2", 50), ("cuda:tile:r16:c1:b1:k2", 64), ("cuda:tile:r4:c1:b1", 10),
    ("cuda:tile:r8:c1:b1:k2", 16), ("cuda:tile:r8:c2:b1", 128), ("cuda:tile:r8:c4:b1", 128),
    ("cuda:tile:r4:c2:b1", 100), ("cuda:tile:r16:c4:b1", 128),
]  # fmt: skip


@pytest.fixture(autouse=True)
def own_memory(monkeypatch, tmp_path):
    """Keep the measurements of these tests out of the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOTLAP_STRICT", "1")
    selection.forget()
    yield
    selection.forget()
    hotlap.disable()


def rounds(variant):
    return ":mma:" in variant or ":tile:" in variant


def on_gpu(hx):
    return hx if hx is None else tuple(state.cuda() for state in hx) if isinstance(hx, tuple) else hx.cuda()


def case(kind, hidden, batch, given=True, **options):
    torch.manual_seed(hidden)
    layer, reference = pair(kind, 5, hidden, **options)
    hx = states(kind, layer, (batch,)) if given else None
    return layer.cuda(), reference, torch.randn(37, batch, 5, device="cuda"), on_gpu(hx)


@kinds
@pytest.mark.parametrize(("variant", "hidden"), VARIANTS)
def test_every_kernel_matches_torch(kind, variant, hidden):
    for exact in (False, True):
        if exact and rounds(variant):
            continue
        layer, reference, x, hx = case(kind, hidden, 37)
        layer.precision = "ieee" if exact else "tf32"
        assert_alike(kind, variant, layer, reference, x, hx, EXACT if exact else TF32)
        layer, reference, x, hx = case(kind, hidden, 3, False, num_layers=2, bidirectional=True, bias=False)
        layer.precision = "ieee" if exact else "tf32"
        assert_alike(kind, variant, layer, reference, x, hx, EXACT if exact else TF32)


@kinds
@pytest.mark.parametrize("variant", ["cuda:fma:r2:c1:b1", "cuda:mma:r16:c4:b1", "cuda:tile:r4:c1:b1"])
@pytest.mark.parametrize(("features", "hidden"), [(1, 64), (8, 64), (9, 64), (17, 16), (64, 10)])
def test_few_features_are_multiplied_by_the_walk_and_many_before_it(kind, variant, features, hidden):
    """There are two layers, the second with as many features as the first has units, and the batch comes first."""
    torch.manual_seed(features)
    layer, reference = pair(kind, features, hidden, num_layers=2, batch_first=True)
    x = torch.randn(33, 21, features, device="cuda")
    for precision, tolerance in (("tf32", TF32), ("ieee", EXACT)):
        if precision == "ieee" and rounds(variant):
            continue
        layer.precision = precision
        assert_alike(kind, variant, layer.cuda(), reference, x, None, tolerance)


@kinds
def test_dropout_between_layers_has_the_right_gradients(kind):
    torch.manual_seed(0)
    layer, reference = pair(kind, 5, 64, num_layers=2, dropout=0.4)
    layer.precision = "ieee"
    layer, x = layer.cuda(), torch.randn(9, 20, 5, device="cuda")
    torch.manual_seed(3)
    with selection.forced("cuda:fma:r2:c1:b1"):
        y = layer(x)[0]
        found = [y.detach(), *torch.autograd.grad(y.square().sum(), list(layer.parameters()))]
    for tensor, expected in zip(found, by_masks(kind, reference, x, 3), strict=True):
        assert (tensor - expected).norm() <= 1e-4 * expected.norm()


@kinds
@pytest.mark.parametrize("hidden", [10, 64, 128, 256])
def test_the_chosen_variant_is_as_exact_as_cudnn(kind, hidden):
    layer, reference, x, hx = case(kind, hidden, 200)
    exact = outcome(reference.cuda(), x.double(), doubled(hx))
    found = outcome(layer, x, hx)
    with selection.forced("cudnn"):
        cudnn = outcome(layer, x, hx)

    def error(which):
        pairs = zip((*which[0], *which[1]), (*exact[0], *exact[1]), strict=True)
        return max(float((tensor.double() - expected).norm() / expected.norm()) for tensor, expected in pairs)

    assert error(found) <= 1.1 * error(cudnn) + 1e-6


@kinds
@pytest.mark.parametrize("variant", ["cuda:fma:r2:c1:b1", "cuda:mma:r16:c4:b1", "cuda:tile:r4:c1:b1"])
def test_the_same_input_gives_the_same_bits(kind, variant):
    layer, _, x, hx = case(kind, 64, 50, num_layers=2)
    with selection.forced(variant):
        first, second = outcome(layer, x, hx), outcome(layer, x, hx)
    assert all(torch.equal(*both) for pairs in zip(first, second, strict=True) for both in zip(*pairs, strict=True))


@kinds
def test_a_graph_replays_what_was_captured(kind):
    layer, _, x, _ = case(kind, 64, 50, given=False)
    weights = list(layer.parameters())

    def run():
        y, last = layer(x)
        return torch.autograd.grad(y.square().sum() + (last[0] if kind == "lstm" else last).sum(), weights)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with selection.forced("cuda:fma:r2:c1:b1"):
        with torch.cuda.stream(side):
            expected = run()
            run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = run()
    for _ in range(2):
        for gradient in captured:
            gradient.zero_()
        graph.replay()
        assert all(torch.equal(replayed, eager) for replayed, eager in zip(captured, expected, strict=True))


@kinds
def test_a_shape_first_seen_in_a_capture_uses_cudnn_and_is_not_measured(kind, monkeypatch):
    layer, _, x, _ = case(kind, 32, 8, given=False)
    with selection.forced("cudnn"), torch.no_grad():
        layer(x)
    monkeypatch.setattr(measurement, "times", lambda *_: pytest.fail("measured while capturing"))
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        layer(x)
    graph.replay()


@kinds
def test_nothing_waits_for_the_device(kind):
    layer, _, x, hx = case(kind, 64, 50)
    outcome(layer, x, hx)  # measures
    torch.cuda.set_sync_debug_mode("error")
    try:
        y, _ = layer(x, hx)
        torch.autograd.grad(y, list(layer.parameters()), y.detach())
    finally:
        torch.cuda.set_sync_debug_mode("default")


@kinds
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_layer_is_one_operation_of_a_compiled_graph(kind, backend):
    torch._dynamo.reset()
    layer, reference, x, _ = case(kind, 64, 20, given=False, num_layers=2)
    weights = list(layer.parameters())
    with selection.forced("cuda:fma:r2:c1:b1"), torch._dynamo.config.patch(allow_rnn=True):
        eager = torch.autograd.grad(layer(x)[0].square().sum(), weights)
        compiled = torch.compile(layer, fullgraph=True, backend=backend)
        found = torch.autograd.grad(compiled(x)[0].square().sum(), weights)
    reference = reference.cuda()
    exact = torch.autograd.grad(reference(x.double())[0].square().sum(), list(reference.parameters()))
    for gradient, eager_gradient, exact_gradient in zip(found, eager, exact, strict=True):  # all round products to TF32
        assert (gradient - exact_gradient).norm() <= 1.5 * (
            eager_gradient - exact_gradient
        ).norm() + 1e-5 * exact_gradient.norm()


@kinds
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("features", [5, 40])
def test_under_autocast_outputs_have_the_type_of_cudnns(kind, dtype, features):
    torch.manual_seed(features)
    layer, reference = pair(kind, features, 64)
    layer, x = layer.cuda(), torch.randn(37, 20, features, device="cuda")
    with torch.autocast("cuda", dtype=dtype):
        with selection.forced("cuda:fma:r2:c1:b1"):
            y, last = layer(x)
        theirs, of_theirs = KINDS[kind][1].forward(layer, x)
        y.float().sum().backward()
    assert y.dtype == theirs.dtype
    assert y.shape == theirs.shape
    exact = reference.cuda()(x.double())[0]
    assert (y - exact).norm() <= 1.1 * (theirs - exact).norm() + 1e-3 * exact.norm()
    exact.sum().backward()
    for parameter, expected in zip(layer.parameters(), reference.parameters(), strict=True):
        assert parameter.grad.dtype == torch.float32
        assert (parameter.grad - expected.grad).norm() <= 5e-3 * expected.grad.norm()
    assert [state.dtype for state in last] == [state.dtype for state in of_theirs]


@kinds
def test_low_precision_weights_stay_close_to_float64(kind):
    layer, reference, x, _ = case(kind, 64, 20, given=False)
    layer = layer.bfloat16()
    reference.load_state_dict(layer.state_dict())
    with selection.forced("cuda:mma:r8:c1:b1"):
        (y, *_), gradients = outcome(layer, x.bfloat16(), None)
    exact = reference.cuda()(x.bfloat16().double())[0]
    assert y.dtype == torch.bfloat16
    assert (y - exact).norm() <= 1e-2 * exact.norm()
    assert all(gradient.dtype == torch.bfloat16 for gradient in gradients)


@kinds
def test_packed_sequences_are_left_to_torch(kind):
    layer, _, x, _ = case(kind, 16, 4, given=False)
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([37, 20, 9, 1]))
    assert torch.equal(layer(packed)[0].data, KINDS[kind][1].forward(layer, packed)[0].data)


@kinds
def test_float64_is_left_to_torch(kind):
    layer, _, x, _ = case(kind, 16, 4, given=False)
    layer = layer.double()
    assert torch.equal(layer(x.double())[0], KINDS[kind][1].forward(layer, x.double())[0])


@kinds
def test_gradients_are_right_when_only_the_last_state_is_used(kind):
    layer, reference, x, _ = case(kind, 64, 20, given=False)
    layer.precision = "ieee"
    with selection.forced("cuda:fma:r2:c1:b1"):
        layer(x)[1][0].sum().backward()
    reference.cuda()(x.double())[1][0].sum().backward()
    for parameter, expected in zip(layer.parameters(), reference.parameters(), strict=True):
        assert (parameter.grad - expected.grad).norm() <= 1e-5 * expected.grad.norm()


@kinds
def test_the_choice_is_measured_once_and_kept(kind, monkeypatch):
    layer, _, x, _ = case(kind, 64, 64, given=False)
    layer(x)
    chosen = dict(selection._known)
    assert len(chosen) == 1
    assert selection.file_of(0).exists()
    selection.forget()
    monkeypatch.setattr(measurement, "times", lambda *_: pytest.fail("measured again"))
    layer(x)
    assert dict(selection._known) == chosen


@kinds
def test_measuring_leaves_random_numbers_and_settings_alone(kind):
    layer, _, x, _ = case(kind, 64, 64, given=False)
    before = torch.cuda.get_rng_state(), torch.get_rng_state(), torch.backends.cuda.matmul.allow_tf32
    layer(x)
    after = torch.cuda.get_rng_state(), torch.get_rng_state(), torch.backends.cuda.matmul.allow_tf32
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[1], after[1])
    assert before[2] == after[2]


def test_every_likely_variant_can_be_measured():
    """Every candidate kernel compiles, launches, agrees with cuDNN and can be timed, for deep layers too."""
    wide = [(kind, 128, 200, 64, 256, 3) for kind in ("lstm", "gru")]
    for kind, batch, steps, features, hidden, layers in (
        ("lstm", 200, 20, 8, 16, 1), ("gru", 200, 20, 8, 64, 1), ("lstm", 200, 20, 8, 128, 1), *wide,
    ):  # fmt: skip
        key = Key(kind, batch, steps, features, hidden, layers, 1, True, "float32", False, True)
        assert_all_can_be_measured(key)


def assert_all_can_be_measured(key):
    properties = torch.cuda.get_device_properties(0)
    chip = candidates.Chip(properties.multi_processor_count, (properties.major, properties.minor))
    likely = candidates.likely(key.kind, key.hidden, key.batch, key.exact, chip)
    layer, x, dy = probe.made(key, "cuda:0")
    assert agreement.agreeing(key, layer, x, dy, measurement.usable(key, 0)) == likely
    times = measurement.times(key, 0)
    assert {"cudnn"} < set(times) <= {"cudnn", *map(str, likely)}
    assert all(0 < took < math.inf for took in times.values())


@kinds
def test_without_tf32_the_limit_is_tighter(kind, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    key = Key(kind, 200, 20, 8, 64, 2, 1, True, "float32", True, True)
    assert agreement.limit(key) < 1e-3
    assert_all_can_be_measured(key)


@kinds
def test_gradients_under_ddp_are_the_same(kind, tmp_path):
    layer, _, x, _ = case(kind, 64, 20, given=False)
    twin = copy.deepcopy(layer)
    torch.distributed.init_process_group("nccl", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(layer, device_ids=[0])
        with selection.forced("cuda:fma:r2:c1:b1"):
            wrapped(x)[0].square().sum().backward()
            twin(x)[0].square().sum().backward()
    finally:
        torch.distributed.destroy_process_group()
    for parameter, expected in zip(layer.parameters(), twin.parameters(), strict=True):
        assert torch.equal(parameter.grad, expected.grad)


def test_parametrized_weights_are_followed():
    layer = nn.utils.parametrizations.weight_norm(ours.LSTM(5, 16, precision="ieee").cuda(), "weight_hh_l0")
    x = torch.randn(7, 3, 5, device="cuda")
    with torch.no_grad():
        layer.parametrizations.weight_hh_l0.original0.mul_(2)
    with selection.forced("cuda:fma:r2:c1:b1"):
        found = layer(x)[0]
    torch.testing.assert_close(found, nn.LSTM.forward(layer, x)[0], rtol=1e-3, atol=1e-3)


def test_the_entry_trains_an_unmodified_model_to_the_same_losses():
    plain = train(Recurrent, SERIES, device="cuda")
    with hotlap.enable(None, with_=["recurrent-kernels"]) as under:
        losses, module, *_ = train(Recurrent, SERIES, device="cuda")
        (outcome_,) = under.outcomes
    assert outcome_.status == "applied", outcome_.why
    assert losses == pytest.approx(plain[0], rel=2e-3)
    assert type(module.lstm) is nn.LSTM
