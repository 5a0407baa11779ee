"""A user's loss function is replayed with results identical to the bit, and left alone where it cannot be replayed."""

from __future__ import annotations

import random
import sys
from types import ModuleType

import pytest
import torch
from torch import nn
from torch.nn import functional

from hotlap.catalog.cuda_graphs import functions
from hotlap.catalog.cuda_graphs.purity import Constants
from hotlap.runtime.decline import EntryDeclined
from tests.catalog.emulated_graphs import Net, adamw, at_work, same

graphs = pytest.fixture(at_work)

WEIGHTS = (0.5, 2.0)
STEEPNESS = 3.0
TABLE = torch.tensor([1.0, 2.0, 3.0])
LISTED = [1.0]
CALLS = 0


@pytest.fixture(autouse=True)
def worth_it(constants):
    """An emulated replay does the work again and is never faster, so it always counts as worthwhile."""
    constants(functions, FASTER=float("inf"))


def scaled(values):
    return [(value * weight).square().mean() for value, weight in zip(values, WEIGHTS, strict=True)]


def ragged(outputs, targets, power=2):
    """The targets are rows of (sample, value), of any number."""
    picked = outputs[targets[:, 0].long()]
    near = functional.smooth_l1_loss(picked.sum(1), targets[:, 1], reduction="none")
    rest = torch.sigmoid(STEEPNESS * outputs) ** power + TABLE[1]
    return (*scaled((near, rest)), len(targets))


def noisy(outputs, targets):
    return functional.dropout(ragged(outputs, targets)[0] + outputs, 0.5).mean(), torch.zeros(()), 1


def train(loss_of, steps=40, around=None, seen=None, passed=lambda targets: targets, made=lambda outputs: outputs):
    torch.manual_seed(0)
    net = Net()
    optim = adamw(net.parameters())
    seen = [] if seen is None else seen
    for number in range(steps):
        optim.zero_grad()
        outputs = net(torch.randn(5, 6))
        if around:
            around(number, net, outputs)
        rows = 3 + number % 3
        targets = torch.stack((torch.arange(rows) % 5.0, torch.randn(rows)), 1)
        near, rest, count = globals()[loss_of](made(outputs), passed(targets))
        (near + 2 * rest).backward()
        seen += [
            near.detach(),
            rest.detach(),
            torch.tensor(count),
            *(parameter.grad.clone() for parameter in net.parameters()),
        ]
        optim.step()
    return [*seen, *net.state_dict().values(), torch.rand(2)]


@pytest.mark.parametrize("loss_of", ["ragged", "noisy"])
def test_a_ragged_loss_is_replayed_for_each_length(loss_of, graphs):
    original = globals()[loss_of]
    plain = train(loss_of)
    graphs.begin()
    assert same(train(loss_of), plain)
    assert f"of Net and of {loss_of};" in graphs.site.outcome.why, (graphs.site.outcome, graphs.functions.why_not)
    assert graphs.functions._known[0].recorded == 3
    graphs.site.close()
    assert globals()[loss_of] is original


def test_outputs_may_be_converted_before_the_loss(graphs):
    def doubled(outputs):
        return outputs.double() * 2

    plain = train("ragged", made=doubled)
    graphs.begin()
    assert same(train("ragged", made=doubled), plain)
    assert "and of ragged" in graphs.site.outcome.why


def test_replaces_the_function_in_every_module_that_imported_it(graphs):
    other = ModuleType("losses_elsewhere")
    other.loss = original = ragged
    sys.modules["losses_elsewhere"] = other
    try:
        graphs.begin()
        train("ragged", steps=12)
        assert other.loss is not original
        graphs.site.close()
        assert other.loss is original
    finally:
        del sys.modules["losses_elsewhere"]


def test_hooks_and_retained_gradients_of_outputs_still_work(graphs):
    def run():
        seen = []

        def around(number, net, outputs):
            outputs.retain_grad()
            outputs.register_hook(lambda gradient: seen.append(gradient))
            retained.append(outputs)

        retained = []
        return [*train("ragged", around=around), *seen, *(outputs.grad for outputs in retained)]

    plain = run()
    graphs.begin()
    assert same(run(), plain)
    assert graphs.functions._known[0].recorded == 3


def twice(outputs, targets):
    first, second = ragged(outputs, targets), ragged(2 * outputs, targets)
    return first[0] + second[0], first[1] + second[1], 1


def test_a_second_call_before_the_backward_is_computed(graphs, monkeypatch):
    plain = train("twice")
    graphs.begin()
    monkeypatch.setattr(functions, "Constants", refusing("twice"))
    assert same(train("twice"), plain)


def refusing(name):
    def constants(torch, function):
        if function.__name__ == name:
            raise EntryDeclined("as the test wants it")
        return Constants(torch, function)

    return constants


def test_evaluation_is_left_alone(graphs):
    def around(number, net, outputs):
        with torch.no_grad():
            seen.append(ragged(outputs, torch.tensor([[0.0, 1.0]]))[0])

    seen = []
    plain = train("ragged", around=around, seen=seen)
    graphs.begin()
    seen = []
    assert same(train("ragged", around=around, seen=seen), plain)


def test_notices_a_changed_constant(graphs, monkeypatch):
    def around(number, net, outputs):
        if number == 20:
            monkeypatch.setitem(globals(), "STEEPNESS", 1.0)

    plain = train("ragged", around=around)
    monkeypatch.setitem(globals(), "STEEPNESS", 3.0)
    graphs.begin()
    assert same(train("ragged", around=around), plain)
    assert graphs.functions.why_not == {"ragged": "what it reads has changed"}


def test_values_in_a_tensor_it_reads_may_change(graphs):
    def around(number, net, outputs):
        TABLE[1] = number / 10

    plain = train("ragged", around=around)
    graphs.begin()
    assert same(train("ragged", around=around), plain)
    assert graphs.functions._known[0].recorded == 3


def test_gives_up_a_function_that_is_no_faster(graphs, constants):
    constants(functions, FASTER=0.0)
    plain = train("ragged")
    graphs.begin()
    assert same(train("ragged"), plain)
    assert "and of" not in graphs.site.outcome.why
    assert "ragged stays eager (replaying it takes the host as long as computing it)" in graphs.site.outcome.why


def test_does_not_disturb_a_program_that_traces_calls_itself(graphs):
    def own(*_):
        pass

    graphs.begin()
    sys.setprofile(own)
    try:
        train("ragged", steps=20)
        assert sys.getprofile() is own
    finally:
        sys.setprofile(None)
    assert graphs.functions.why_not == {}


# What must not be replayed


def prints(outputs, targets):
    print(len(targets))
    return ragged(outputs, targets)


def counts(outputs, targets):
    global CALLS
    CALLS += 1
    return ragged(outputs, targets)


def draws(outputs, targets):
    near, rest, count = ragged(outputs, targets)
    return near * random.random(), rest, count


def keeps(outputs, targets):
    LISTED.append(1.0)
    del LISTED[1:]
    return ragged(outputs, targets)


def overwrites(outputs, targets):
    targets.mul_(1.5)
    targets[:, 0].div_(1.5)
    return ragged(outputs, targets)


def hands_back(outputs, targets):
    _, rest, count = ragged(outputs, targets)
    return outputs[0, 0], rest, count


def touches_data(outputs, targets):
    targets.data[:, 1] += 1
    return ragged(outputs, targets)


criterion = nn.SmoothL1Loss()


def by_module(outputs, targets):
    near, rest, count = ragged(outputs, targets)
    return near + criterion(outputs, outputs.detach()), rest, count


REFUSED = {
    "prints": "uses print",
    "counts": "sets a global variable",
    "draws": "random.random of draws",
    "keeps": "is list",
    "overwrites": "writes into its arguments",
    "hands_back": "returns its arguments",
    "touches_data": "uses .data",
    "by_module": "is SmoothL1Loss",
}


@pytest.mark.parametrize("name", REFUSED)
def test_functions_that_reach_beyond_their_arguments_are_left_alone(name, graphs):
    random.seed(0)
    plain = train(name, steps=24)
    graphs.begin()
    random.seed(0)
    assert same(train(name, steps=24), plain)
    assert REFUSED[name] in graphs.functions.why_not.get(name, ""), graphs.functions.why_not


def around_variables():
    weight = 2.0

    def loss(outputs, targets):
        return (weight * outputs).mean()

    return loss


def test_does_not_replay_a_nested_function():
    with pytest.raises(EntryDeclined, match="variables of its enclosing function"):
        Constants(torch, around_variables())


def test_an_argument_of_an_unknown_type_disables_it(graphs):
    plain = train("with_anything", passed=lambda targets: Anything(targets))
    graphs.begin()
    assert same(train("with_anything", passed=lambda targets: Anything(targets)), plain)
    assert graphs.functions.why_not == {"with_anything": "its arguments cannot be captured"}


def numbered(outputs, targets, number):
    return ragged(outputs, targets, power=1 + number / 100)


def test_a_number_that_differs_at_each_call_disables_it(graphs, constants):
    constants(functions, MOST_SEEN=5)
    plain = counted()
    graphs.begin()
    assert same(counted(), plain)
    assert graphs.functions.why_not == {"numbered": "its arguments are of a different kind at each call"}


def counted():
    torch.manual_seed(0)
    net = Net()
    optim = adamw(net.parameters())
    seen = []
    for number in range(24):
        optim.zero_grad()
        near, rest, _ = numbered(net(torch.randn(5, 6)), torch.tensor([[0.0, 1.0]] * 3), number)
        (near + rest).backward()
        seen += [near.detach(), rest.detach()]
        optim.step()
    return [*seen, *net.state_dict().values()]


class Anything:
    def __init__(self, held):
        self.held = held


def with_anything(outputs, targets):
    return ragged(outputs, targets.held)


def test_a_second_backward_names_the_flag_to_use(graphs):
    graphs.begin()
    train("ragged", steps=20)
    outputs = torch.randn(5, 2, requires_grad=True)
    loss = ragged(outputs, torch.tensor([[0.0, 1.0]] * 3))[0]
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="--without cuda-graphs"):
        loss.backward()
