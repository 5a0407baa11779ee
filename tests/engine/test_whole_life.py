"""What a trained model is used for besides training: predictions, files for serving, and the choice of a rate."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hotlap.engine import RMSE, Mean, export, order, steps
from hotlap.engine.errors import BadRecipe, ExportFailed
from tests.engine.training import Net, Rows, Stream, fitted, numbers, trainer

INPUTS, TARGETS = numbers()


class Pair(NamedTuple):
    twice: torch.Tensor
    named: dict


class Several(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 1)

    def forward(self, inputs):
        found = self.layer(inputs)
        return Pair(2 * found, {"half": found / 2, "sum": found.sum(1)})


@pytest.mark.parametrize(
    "data",
    [
        Rows(INPUTS, TARGETS),
        Stream(INPUTS, TARGETS),
        (INPUTS,),
        INPUTS.numpy(),
        DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=9),
    ],
    ids=["resident", "stream", "inputs", "array", "loader"],
)
def test_predicts_every_row_in_order(data):
    made, _ = fitted(epochs=1, evaluation_batch=16)
    found = made.predict(data)
    assert made.model.training
    made.model.eval()
    with torch.no_grad():
        torch.testing.assert_close(found, made.model(INPUTS))


def test_predictions_have_the_form_of_the_models_outputs():
    made = trainer(model=Several, evaluation_batch=32)
    found = made.predict((INPUTS, TARGETS))
    assert isinstance(found, Pair)
    torch.testing.assert_close(found.named["sum"], found.twice[:, 0] / 2)
    with pytest.raises(BadRecipe, match=r"returned shape \[\] for 64 rows; predict needs one output per row"):
        trainer(model=lambda: Whole()).predict(INPUTS)


class Whole(nn.Linear):
    def __init__(self):
        super().__init__(6, 1)

    def forward(self, inputs):
        return super().forward(inputs).sum()


def test_an_exported_model_computes_the_same(tmp_path):
    made, history = fitted(epochs=2)
    valid = Rows(*numbers(seed=1))
    scores = made.export(tmp_path / "served" / "net.pt2", valid)
    assert scores == pytest.approx(history.last.scores, rel=1e-5)
    assert [path.name for path in (tmp_path / "served").iterdir()] == ["net.pt2"]
    served = torch.export.load(tmp_path / "served" / "net.pt2").module()
    torch.testing.assert_close(served(INPUTS[:3]), made.predict(INPUTS)[:3])
    assert made.model.training


def test_a_model_that_cannot_be_exported_leaves_no_file(tmp_path):
    class Deciding(Net):
        def forward(self, inputs):
            return super().forward(inputs) * (2 if float(inputs.sum()) > 0 else 1)

    made = trainer(model=Deciding)
    with pytest.raises(ExportFailed, match=r"torch\.export cannot export Deciding: "):
        made.export(tmp_path / "net.pt2", (INPUTS, TARGETS))
    with pytest.raises(ExportFailed, match=r"net.pth ends neither in .pt2, .* nor in .onnx; use net.pt2"):
        made.export(tmp_path / "net.pth", (INPUTS, TARGETS))
    with pytest.raises(ExportFailed, match=r"export net.onnx, then: trtexec --onnx=net.onnx --saveEngine=net.engine"):
        made.export(tmp_path / "net.engine", (INPUTS, TARGETS))
    assert not list(tmp_path.iterdir())


@pytest.mark.thorough
def test_an_onnx_file_computes_the_same(tmp_path):
    import onnxruntime

    made, history = fitted(model=Several, loss=lambda outputs, targets: (outputs.twice - targets).square().mean(),
                           metrics={"rmse": RMSE(of=lambda outputs, targets: (outputs.twice, targets))})  # fmt: skip
    assert made.export(tmp_path / "net.onnx", Rows(*numbers(seed=1))) == pytest.approx(history.last.scores, rel=1e-5)
    assert [path.name for path in tmp_path.iterdir()] == ["net.onnx"]
    session = onnxruntime.InferenceSession(str(tmp_path / "net.onnx"))
    for rows in (1, 7):  # another number of rows than it was written with
        outputs = session.run(None, {session.get_inputs()[0].name: INPUTS[:rows].numpy()})
        expected = made.predict(INPUTS[:rows])
        torch.testing.assert_close(torch.from_numpy(outputs[0]), expected[0], atol=1e-4, rtol=1e-4)


def test_names_the_packages_that_a_format_needs(tmp_path, answering):
    answering(export, find_spec=None)
    with pytest.raises(ExportFailed, match=r"\.onnx files need onnx, onnxscript, onnxruntime; type: pip install onnx"):
        trainer().export(tmp_path / "net.onnx", (INPUTS, TARGETS))


def test_a_file_with_another_score_is_not_kept(tmp_path, monkeypatch):
    """An output near the border of two classes may fall on the other side of it, within what outputs may differ by."""
    made = trainer(metrics={"above": Mean(lambda outputs, targets: (outputs > 0).float(), higher_is_better=True)})
    load = torch.export.load
    with torch.no_grad():
        made.model.head.bias -= made.predict(INPUTS).median()
    shift = 1e-4 * float(made.predict(INPUTS).abs().max())

    class Wrong:
        def __init__(self, path):
            self.found = load(path).module()

        def module(self):
            return lambda inputs: self.found(inputs) + shift

    with torch.no_grad():
        made.model.head.bias -= shift / 2
    monkeypatch.setattr(torch.export, "load", Wrong)
    with pytest.raises(ExportFailed, match=r"above of the exported model is 0\.\d+, but 0\.\d+ of the model"):
        made.export(tmp_path / "net.pt2", (INPUTS, TARGETS))
    assert not list(tmp_path.iterdir())


def test_a_file_that_computes_something_else_is_not_kept(tmp_path, monkeypatch):
    made = trainer()
    load = torch.export.load

    class Wrong:
        def __init__(self, path):
            self.found = load(path).module()

        def module(self):
            return lambda inputs: self.found(inputs) + 0.1

    monkeypatch.setattr(torch.export, "load", Wrong)
    with pytest.raises(ExportFailed, match=r"differs from the model by up to 0\.1, so it was not written"):
        made.export(tmp_path / "net.pt2", (INPUTS, TARGETS))
    assert not list(tmp_path.iterdir())


def test_learning_rates_are_tried_on_copies():
    made = trainer(model=lambda: nn.Linear(6, 1), optimizer=torch.optim.SGD)
    before, stream = made.model.weight.detach().clone(), torch.get_rng_state()
    found = made.try_learning_rates((INPUTS, TARGETS), low=1e-5, high=100.0, steps=60)
    assert torch.equal(made.model.weight, before)
    assert torch.equal(torch.get_rng_state(), stream)
    assert made.optimizer.param_groups[0]["lr"] == 2**-6
    assert len(found.rates) == len(found.losses) < 60  # it diverged
    assert found.rates[0] == pytest.approx(1e-5)
    assert 1e-3 < found.suggested < 1.0
    with pytest.raises(BadRecipe, match=r"low=1\.0, high=0\.1"):
        made.try_learning_rates((INPUTS, TARGETS), low=1.0, high=0.1)


@pytest.mark.parametrize("source", [Rows, Stream])
def test_epochs_of_some_steps_go_on_where_the_last_one_ended(source, monkeypatch):
    """Three epochs of 7 steps of 16 rows are 4.8 passes over 70 rows; each pass has every row once."""
    seen = []

    drawn = order.order_of

    def watched(*arguments):
        seen.extend((found := drawn(*arguments)).tolist())
        return found

    monkeypatch.setattr(steps, "order_of", watched)
    _, history = fitted(train=source(*numbers()), steps_per_epoch=7, evaluate=lambda model: {"own": 1.0})
    assert [(record.steps, record.rows) for record in history.epochs] == [(7, 112), (14, 112), (21, 112)]
    assert all("own" in record.scores for record in history.epochs)
    for first in range(0, 280, 70):
        assert sorted(seen[first : first + 70]) == list(range(70))
    assert len(seen) == 336


def test_clips_each_element_of_a_gradient():
    torch.manual_seed(3)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=2**-6)
    for _ in range(2):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(INPUTS), TARGETS).backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.05)
        optimizer.step()
    options = {"model": lambda: nn.Linear(6, 1), "optimizer": torch.optim.SGD, "batch_size": 70, "shuffle": False}
    made, _ = fitted(epochs=2, clip_value=0.05, metrics={"rmse": RMSE()}, **options)
    torch.testing.assert_close(made.model.weight, model.weight)
    with pytest.raises(BadRecipe, match="clip and clip_value were both given"):
        trainer(clip=1.0, clip_value=1.0)
