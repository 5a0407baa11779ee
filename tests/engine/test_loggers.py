"""W&B and MLflow: the packages themselves, without a network, where installed, else what they would be called with."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from hotlap.engine import JsonLines, MLflow, TensorBoard, WandB
from hotlap.engine.errors import EngineError
from tests.engine.training import fitted

NAMES = {"epoch/loss", "epoch/seconds", "epoch/learning_rate", "epoch/rmse"}


@pytest.fixture
def tracked(monkeypatch):
    """Stand in for the packages that are missing; return what they were given, by step."""
    logged = {}

    def log(values, step):
        logged.setdefault(step, {}).update(values)

    run = SimpleNamespace(log=log, finish=lambda: logged.update(closed=True), info=SimpleNamespace(run_id="1"))
    client = SimpleNamespace(
        get_experiment_by_name=lambda name: None,
        create_experiment=lambda name: "1",
        create_run=lambda number, run_name: run,
        log_metric=lambda number, name, value, step: log({name: value}, step),
        set_terminated=lambda number: logged.update(closed=True),
    )
    if find_spec("wandb") is None:
        monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **settings: run))
    if find_spec("mlflow") is None:
        monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(MlflowClient=lambda store: client))
    return logged


def test_wandb_gets_the_numbers_of_steps_and_epochs(tracked, tmp_path, monkeypatch):
    sink = WandB("hotlap", mode="offline", dir=str(tmp_path))
    log, seen = sink.run.log, {}
    monkeypatch.setattr(sink.run, "log", lambda values, step: (seen.update({step: values}), log(values, step=step)))
    said = []
    fitted(epochs=2, log_every=2, sinks=[sink], say=said.append)
    assert {5, 10} <= set(seen)
    assert set(seen[10]) >= NAMES
    assert not any("WandB" in line for line in said)
    if tracked:  # the package is missing
        assert tracked["closed"]
    else:
        assert len(list(tmp_path.glob("wandb/offline-run-*/*.wandb"))) == 1


def test_mlflow_gets_the_numbers_of_steps_and_epochs(tracked, tmp_path):
    store = f"sqlite:///{tmp_path / 'mlflow.db'}"
    sink = MLflow("hotlap", name="first", store=store)
    fitted(epochs=2, log_every=2, sinks=[sink])
    if tracked:
        assert set(tracked[5]) >= NAMES
        assert tracked["closed"]
        return
    found = sink._client.get_metric_history(sink.run.info.run_id, "epoch/rmse")
    assert [entry.step for entry in found] == [5, 10]
    assert sink._client.get_run(sink.run.info.run_id).info.status == "FINISHED"


@pytest.mark.parametrize(
    ("make", "package"),
    [(lambda: TensorBoard("runs"), "tensorboard"), (lambda: WandB("a"), "wandb"), (lambda: MLflow("a"), "mlflow")],
)
def test_a_missing_package_is_named(monkeypatch, make, package):
    for name in ("torch.utils.tensorboard", "wandb", "mlflow"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(EngineError, match=f"this log needs the package {package}; type: pip install {package}"):
        make()


def test_several_sinks_get_the_same_records(tracked, tmp_path):
    fitted(epochs=1, sinks=[WandB("hotlap", mode="offline", dir=str(tmp_path)), JsonLines(tmp_path / "log.jsonl")])
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 1
