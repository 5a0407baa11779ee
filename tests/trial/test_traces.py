"""A trial records weights, optimizer state, random streams, evaluations, saved files and printed lines."""

from __future__ import annotations

import copy
import io
import random

import numpy as np
import pytest
import torch
from torch import nn

from hotlap.patch.ledger import Ledger
from hotlap.process.output import Listener
from hotlap.records.codec import from_json, to_json
from hotlap.trial.fingerprints import MOST, Fingerprints
from hotlap.trial.saved_files import saved_file, saved_files
from hotlap.trial.state import Watch, streams


def digest(*tensors) -> list[str]:
    named = ((str(number), tensor) for number, tensor in enumerate(tensors))
    return [fingerprint.digest for fingerprint in Fingerprints(torch).of(named)]


def test_equal_numbers_have_one_fingerprint_in_any_memory_layout():
    numbers = torch.randn(2, 3, 8, 8)
    (plain,) = digest(numbers)
    assert digest(numbers.to(memory_format=torch.channels_last)) == [plain]
    assert digest(numbers.double()) == [plain]
    assert digest(numbers.flip(0)) != [plain], "their places count"
    changed = numbers.clone()
    changed[1, 2, 7, 7] = torch.nextafter(changed[1, 2, 7, 7], torch.tensor(9.0))
    assert digest(changed) != [plain]
    assert digest(torch.zeros(4)) != digest(torch.zeros(5))


def test_the_distance_of_two_sketches_approximates_that_of_the_numbers():
    first, second = torch.randn(5000), torch.randn(5000)
    left, right = Fingerprints(torch).of([("a", first), ("b", second)])
    apart = sum((a - b) ** 2 for a, b in zip(left.sketch, right.sketch, strict=True)) ** 0.5
    assert apart == pytest.approx(float((first - second).norm()), rel=0.6)
    assert left.norm == pytest.approx(float(first.norm()))


def test_many_tensors_share_fingerprints_and_every_change_is_seen():
    tensors = [torch.randn(3) for _ in range(3 * MOST + 5)]
    before = digest(*tensors)
    assert len(before) <= MOST
    for place in (0, 200, len(tensors) - 1):
        changed = [tensor + (number == place) for number, tensor in enumerate(tensors)]
        assert sum(a != b for a, b in zip(before, digest(*changed), strict=True)) == 1


def test_fingerprints_draw_from_no_random_stream():
    before = dict(streams(torch))
    Fingerprints(torch).of([("a", torch.ones(10))])
    assert dict(streams(torch)) == before
    torch.rand(1)
    np.random.rand()
    assert {name for name, stream in streams(torch) if stream != before[name]} == {"torch", "numpy"}
    random.random()
    assert dict(streams(torch))["random"] != before["random"]


@pytest.fixture
def watch():
    ledger = Ledger()
    yield Watch(torch, 40, ledger)
    ledger.close()


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

    def forward(self, inputs):
        return {"out": self.body(inputs)}


def trained(watch, change=lambda model, average, optimizer: None):
    torch.manual_seed(0)
    model = Student()
    average = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    watch.training_begins()
    for step in range(1, 4):
        model(torch.randn(8, 4))["out"].square().mean().backward()
        watch.stepped(optimizer)
        optimizer.step()
        watch.step_over(step, on_cuda=False)
    model.eval()
    with torch.no_grad():
        model(torch.ones(2, 4))
    change(model, average, optimizer)
    return watch.state(1)


def names(first, second, field) -> list[str]:
    left, right = ({found.name: found.digest for found in getattr(state, field)} for state in (first, second))
    return sorted(name for name in left if left[name] != right[name] and name.startswith(("Student", "AdamW")))


CHANGES = {
    "Student 2.body.0.weight": lambda model, average, optimizer: average.body[0].weight.data.add_(1),
    "Student.body.1.running_mean": lambda model, average, optimizer: model.body[1].running_mean.add_(1),
    "AdamW: exp_avg of parameter 0": lambda model, average, optimizer: optimizer.state[model.body[0].weight][
        "exp_avg"
    ].zero_(),
    "AdamW: lr": lambda model, average, optimizer: optimizer.param_groups[0].update(lr=0.2),
    "AdamW: step": lambda model, average, optimizer: optimizer.state[model.body[0].weight]["step"].add_(1),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_a_weight_buffer_average_or_optimizer_state_is_found_by_name(name):
    ledgers = [Ledger(), Ledger()]
    plain = trained(Watch(torch, 40, ledgers[0]))
    ledgers[0].close()
    changed = trained(Watch(torch, 40, ledgers[1]), CHANGES[name])
    ledgers[1].close()
    assert names(plain, changed, "weights") + names(plain, changed, "optimizers") == [name]


def test_the_implementation_of_an_optimizer_is_not_part_of_its_state(watch):
    def fused(model, average, optimizer):
        optimizer.param_groups[0].update(fused=True, foreach=False)

    ledger = Ledger()
    assert names(trained(watch), trained(Watch(torch, 40, ledger), fused), "optimizers") == []
    ledger.close()


def test_a_state_is_read_back_as_saved(watch):
    state = trained(watch)
    assert from_json(type(state), to_json(state), "state") == state


def test_an_evaluation_is_recorded_with_its_step_and_its_size(watch):
    (seen,) = trained(watch).evaluations
    assert (seen.step, seen.calls) == (3, 1)
    assert seen.size > 0


def test_memory_is_recorded_at_every_step(watch):
    assert [look.step for look in trained(watch).memory] == [1, 2, 3]
    assert all(look.host_mb > 10 for look in watch.state(1).memory)


def test_the_parts_of_a_model_that_is_never_called_itself_are_watched(watch):
    class Shell(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(2, 2)

    shell = Shell()
    watch.training_begins()
    for step in (1, 2):
        shell.inner(torch.ones(1, 2))
        watch.step_over(step, on_cuda=False)
    with torch.no_grad():
        shell.inner(torch.ones(1, 2))
    assert [evaluation.calls for evaluation in watch.state(1).evaluations] == [1]


# Files


def checkpoint(**changed):
    torch.manual_seed(0)
    model = nn.Conv2d(1, 2, 3)
    return {"model": model.state_dict(), "epoch": 3, "half": torch.ones(2, dtype=torch.bfloat16)} | changed


def test_a_torch_file_is_compared_by_its_tensors_and_its_other_contents(tmp_path):
    def saved(name, **changed):
        torch.save(checkpoint(**changed), tmp_path / name)
        return saved_file(tmp_path / name, "/x.pt")

    first, again, later = saved("a.pt"), saved("other-name.pt"), saved("c.pt", epoch=4)
    assert first.kind == "torch"
    assert [part.name for part in first.parts] == ["model.weight", "model.bias", "half"]
    assert first == again
    assert (first.parts, first.digest) == (later.parts, later.parts and first.digest)
    assert first.digest != later.digest
    zeros = saved("d.pt", model={name: tensor * 0 for name, tensor in checkpoint()["model"].items()})
    assert [part.norm for part in zeros.parts[:2]] == [0.0, 0.0]
    laid = {"weight": checkpoint()["model"]["weight"].to(memory_format=torch.channels_last)}
    assert saved("e.pt", model=laid).parts[0].digest == first.parts[0].digest


def test_a_pickled_model_is_read_without_running_its_code(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (print, ("boom",))

    torch.save({"model": nn.Linear(2, 2), "bomb": Bomb()}, tmp_path / "a.pt")
    found = saved_file(tmp_path / "a.pt", "/a.pt")
    assert found.kind == "torch"
    assert [part.name for part in found.parts] == ["model._parameters.weight", "model._parameters.bias"]


def test_other_files_are_read_as_numbers_text_or_bytes(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(3.0))
    np.savez(tmp_path / "b.npz", x=np.arange(3.0), y=np.ones(2))
    (tmp_path / "c.csv").write_text("epoch 1,0.5\n")
    (tmp_path / "d.bin").write_bytes(b"\x00\x01")
    (tmp_path / "broken.npz").write_bytes(b"PK nothing")
    found, cut = saved_files(tmp_path)
    assert {file.path: (file.kind, len(file.parts)) for file in found} == {
        "/a.npy": ("numpy", 1), "/b.npz": ("numpy", 2), "/c.csv": ("text", 0), "/d.bin": ("bytes", 0),
        "/broken.npz": ("bytes", 0),
    }  # fmt: skip
    assert cut == ()
    (tmp_path / "c.csv").write_text("epoch 2,0.7\n")
    again = saved_file(tmp_path / "c.csv", "/c.csv")
    assert (again.words, again.digest != found[3].digest) == (found[3].words, True)


# Lines


class Stream(io.BytesIO):
    """Returns the text in small pieces."""

    def read1(self, size=-1):
        return super().read1(7)


def test_lines_are_recorded_as_they_remain_on_a_terminal():
    lines = []
    text = b"first\n 10%\r 20%\r 30%\nsecond\r\n\n 40%\r 50%"
    listener = Listener(Stream(text), lines.append)
    listener.wait(5.0)
    assert listener.lines == ["first", "second"]
    assert [line.strip() for line in lines] == ["first", "10%", "20%", "30%", "second", "40%", "50%"]
