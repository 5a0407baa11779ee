"""Adam in one launch matches torch's Adam; the kernel's own source runs on the CPU, thread by thread."""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import Adam, AdamW
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from hotlap.kernels import adam
from hotlap.kernels.cuda.nvrtc import NoCompiler
from tests.kernels.recurrent import emulating

OTHER_ORDER = (3, 5, 2, 2)


class Kernel:
    def __init__(self, squares, device):
        self.library = emulating.compiled(adam.FILES[1:], adam.defines(squares))

    def launch(self, blocks, threads, stream, given):
        assert threads == adam.THREADS
        self.library.run(ctypes.c_char_p(given), blocks, adam.SHARED_BYTES // 4, 0)


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch, answering):
    monkeypatch.setattr(adam, "kernel", Kernel)
    answering(adam, stream_of=0)


def parameters(sizes=(7, 1025, (33, 31), 1, 4096)):
    torch.manual_seed(1)
    return [nn.Parameter(torch.randn(size)) for size in sizes]


def trained(made, optimizer, steps, clip=None, by_us=False, scale=1.0):
    """Train for some steps; the first one makes the state and is always torch's."""
    torch.manual_seed(2)
    ours = adam.OneLaunch(optimizer, clip, torch.device("cpu"))
    for step in range(steps):
        for parameter in made:
            parameter.grad = torch.empty_like(parameter).normal_() * scale
        if by_us and step:
            assert ours.step()
            continue
        if clip is not None:
            nn.utils.clip_grad_norm_(made, clip)
        optimizer.step()


def pair(make, sizes=None, **options):
    both = []
    for by_us in (False, True):
        made = parameters(sizes) if sizes else parameters()
        optimizer = make(made)
        trained(made, optimizer, 6, by_us=by_us, **options)
        both.append((made, optimizer))
    return both


def near(theirs, ours):
    for expected, parameter in zip(theirs[0], ours[0], strict=True):
        assert torch.allclose(expected, parameter, rtol=2e-6, atol=2e-7)
        expected_state, state = theirs[1].state[expected], ours[1].state[parameter]
        assert expected_state["step"] == state["step"]
        for name in ("exp_avg", "exp_avg_sq"):
            assert torch.allclose(expected_state[name], state[name], rtol=1e-5, atol=1e-7), name


CASES = {
    "plain": lambda made: Adam(made),
    "decay": lambda made: Adam(made, weight_decay=0.1),
    "decoupled": lambda made: AdamW(made, weight_decay=0.1),
    "no-means": lambda made: Adam(made, betas=(0.0, 0.9), eps=1e-3),
    "rate-tensor": lambda made: Adam(made, lr=torch.tensor(3e-3)),
    "rate-in-double": lambda made: Adam(made, lr=torch.tensor(3e-3, dtype=torch.float64)),
    "groups": lambda made: Adam([{"params": made[:2], "lr": 0.1}, {"params": made[2:], "weight_decay": 0.01}]),
}


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_a_step_matches_torch(make):
    near(*pair(make))


@pytest.mark.parametrize("clip", [1e-3, 1.0, 1e6])
@pytest.mark.parametrize("name", ["plain", "groups"])
def test_gradients_are_clipped_by_their_total_norm(name, clip):
    near(*pair(CASES[name], clip=clip))


def test_a_nan_norm_makes_every_weight_nan_as_in_torch():
    made = parameters(((3,), (2,)))
    optimizer = Adam(made)
    trained(made, optimizer, 2, by_us=True)
    made[0].grad, made[1].grad = torch.tensor([1.0, float("nan"), 1.0]), torch.ones(2)
    assert adam.OneLaunch(optimizer, 1.0, torch.device("cpu")).step()
    assert all(parameter.isnan().all() for parameter in made)


def test_accepts_more_tensors_than_fit_in_one_launch(constants):
    constants(adam, PARTS=4)
    near(*pair(Adam, sizes=[5] * (adam.TENSORS + 3), clip=0.5))


def test_chunks_grow_when_there_would_be_too_many(constants):
    constants(adam, CHUNKS=2)
    near(*pair(Adam, sizes=[9000, 7, 4096], clip=0.5))


def test_parameters_without_gradients_are_left_alone():
    made = parameters()
    optimizer = Adam(made)
    trained(made, optimizer, 3, by_us=True)
    before = [parameter.detach().clone() for parameter in made]
    for parameter in made:
        parameter.grad = None
    made[1].grad = torch.ones_like(made[1])
    assert adam.OneLaunch(optimizer, None, torch.device("cpu")).step()
    changed = [not torch.equal(parameter, earlier) for parameter, earlier in zip(made, before, strict=True)]
    assert changed == [False, True, False, False, False]
    assert [int(optimizer.state[parameter]["step"]) for parameter in made] == [3, 4, 3, 3, 3]


def test_repeated_runs_give_the_same_bits():
    """The order of every sum is fixed."""
    first, second = (pair(Adam, clip=0.1)[1] for _ in range(2))
    for parameter, again in zip(first[0], second[0], strict=True):
        assert torch.equal(parameter, again)


def test_a_view_into_a_larger_tensor_need_not_be_aligned():
    whole = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    outcomes = []
    for by_us in (False, True):
        flat = whole.clone()
        made = [nn.Parameter(flat[1:500]), nn.Parameter(flat[501:998])]
        trained(made, Adam(made), 4, by_us=by_us)
        outcomes.append(flat)
    assert torch.allclose(*outcomes, rtol=2e-6, atol=2e-7)


def test_updates_weights_in_another_memory_layout():
    both = []
    for by_us in (False, True):
        torch.manual_seed(1)
        made = [nn.Parameter(torch.randn(OTHER_ORDER).contiguous(memory_format=torch.channels_last))]
        optimizer = Adam(made)
        trained(made, optimizer, 4, by_us=by_us)
        both.append((made, optimizer))
    near(*both)


def test_a_gradient_in_another_layout_is_left_to_torch():
    made = parameters(((3, 4),))
    optimizer = Adam(made)
    trained(made, optimizer, 2, by_us=True)
    before = made[0].detach().clone()
    made[0].grad = torch.ones(4, 3).t()
    assert not adam.OneLaunch(optimizer, None, torch.device("cpu")).step()
    assert torch.equal(made[0], before)


def test_without_an_optimizer_state_nothing_is_done():
    made = parameters()
    for parameter in made:
        parameter.grad = torch.ones_like(parameter)
    assert not adam.OneLaunch(Adam(made), None, torch.device("cpu")).step()


def hooked(made):
    optimizer = Adam(made)
    optimizer.register_step_pre_hook(lambda *given: None)
    return optimizer


def tensor_betas(made):
    optimizer = Adam(made)
    optimizer.param_groups[0]["betas"] = (torch.tensor(0.9), torch.tensor(0.99))
    return optimizer


class OwnAdam(Adam):
    pass


@pytest.mark.parametrize(
    "make",
    [hooked, OwnAdam, torch.optim.RMSprop, partial(Adam, amsgrad=True), partial(Adam, maximize=True), tensor_betas],
)
def test_other_optimizers_are_left_to_torch(make):
    assert adam.one_launch(make(parameters()), None, torch.device("cuda", 0)) is None


def test_a_missing_compiler_is_reported_once(monkeypatch, caplog):
    def none(*given):
        raise NoCompiler("there is none")

    monkeypatch.setattr(adam, "OneLaunch", none)
    adam._say_once.cache_clear()
    for _ in range(2):
        assert adam.one_launch(Adam(parameters()), None, torch.device("cuda", 0)) is None
    assert [record.getMessage() for record in caplog.records] == [
        "Adam's own kernel cannot be used, so torch's is: there is none"
    ]


@contextmanager
def removed(handle):
    try:
        yield
    finally:
        handle.remove()


def test_global_optimizer_hooks_see_the_step():
    made = parameters()
    optimizer = Adam(made)
    trained(made, optimizer, 2, by_us=True)
    seen = []
    with removed(register_optimizer_step_post_hook(lambda stepped, *given: seen.append(stepped))):
        trained(made, optimizer, 2, by_us=True)
    assert seen == [optimizer, optimizer]


def other_gradients(optimizer, *given):
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad = parameter.grad * -5


def other_layout(optimizer, *given):
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad = torch.ones(parameter.shape[::-1]).t()


@pytest.mark.parametrize("hook", [other_gradients, other_layout])
def test_uses_the_gradients_that_a_global_hook_replaces(hook):
    with removed(register_optimizer_step_pre_hook(hook)):
        near(*pair(Adam, sizes=[(3, 4), (5, 2)]))


def test_clipping_under_a_global_hook_is_left_to_torch():
    made = parameters()
    optimizer = Adam(made)
    trained(made, optimizer, 2, by_us=True)
    with removed(register_optimizer_step_pre_hook(other_gradients)):
        assert not adam.OneLaunch(optimizer, 1.0, torch.device("cpu")).step()


def test_notices_later_changes_of_the_optimizer():
    made = parameters()
    optimizer = Adam(made)
    trained(made, optimizer, 2, by_us=True)
    launch = adam.OneLaunch(optimizer, None, torch.device("cpu"))
    for parameter in made:
        parameter.grad = torch.ones_like(parameter)
    assert launch.step()
    optimizer.param_groups[0]["maximize"] = True
    assert not launch.step()
    optimizer.param_groups[0]["maximize"] = False
    optimizer.step = optimizer.step
    assert not launch.step()


def test_groups_that_are_added_later_are_left_to_torch():
    made = parameters()
    optimizer = Adam(made)
    launch = adam.OneLaunch(optimizer, None, torch.device("cpu"))
    optimizer.add_param_group({"params": parameters(((3,),))})
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert not launch.step()


def test_a_tensor_on_another_device_is_left_to_torch():
    made = parameters(((3,),))
    optimizer = Adam(made)
    trained(made, optimizer, 2, by_us=True)
    launch = adam.OneLaunch(optimizer, None, torch.device("cpu"))
    launch.tickets = launch.tickets.to("meta")
    assert not launch.step()


def test_autograd_knows_that_weights_have_changed():
    made = parameters(((3,),))
    optimizer = Adam(made)
    trained(made, optimizer, 2, by_us=True)
    before = made[0]._version
    made[0].grad = torch.ones(3)
    adam.OneLaunch(optimizer, None, torch.device("cpu")).step()
    assert made[0]._version > before
