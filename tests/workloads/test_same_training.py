"""From the same weights and in the same order, the engine trains to the same weights as the naive script.

The tests use float64, because a rounding of float32 grows a hundred thousand times within sixty steps of the detector
and would hide a real difference. The steps of the engine are graphs, emulated, as on a GPU. A few rows are enough:
every phase has a first step and replays, and all but the detector also have a shorter last batch.
"""

from __future__ import annotations

import functools
import shutil
from pathlib import Path

import h5py
import pytest
import torch
from engine.tape import EmulatedRecorder
from torch.utils.data import SequentialSampler
from workload_modules import NAMES, Workload, load_workload, without_shuffling

import hotlap.engine.order
import hotlap.engine.trainer

# Options; how many people, files or pictures; rows of a cycle.
SHORT = {
    "battery_lstm": (["--batch-size", "16", "--lookback", "5"], 0, 60),
    "battery_fnn": (["--batch-size", "16"], 0, 30),
    "bloom": (["--batch-size", "8"], 50, 0),
    "banknotes": (["--batch-size", "2"], 4, 0),
    "leak": (["--batch-size", "8"], 2, 0),
}


@pytest.fixture
def in_double(monkeypatch):
    """Make every request for float32 give float64."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def few_rows(folder: Path, target: Path, count: int) -> Path:
    """Copy the first rows of each part: of the tables of HDF5 files, or of a folder of pictures."""
    for path in sorted(folder.rglob("*.h5")):
        with h5py.File(path) as given, h5py.File(target / path.name, "w") as short:
            for name in given:
                short[name] = given[name][:count]
    for part, number in (("train", count), ("valid", 2)):
        for path in sorted((folder / part / "images").glob("*.npy"))[:number]:
            for own in (path, folder / part / "labels" / f"{path.stem}.txt"):
                place = target / own.relative_to(folder)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(own, place)
    return target


def with_short_cycles(monkeypatch, naive, rows: int) -> None:
    whole = naive.load_cycles
    monkeypatch.setattr(naive, "load_cycles", lambda folder: [frame[:rows] for frame in whole(folder)[:2]])


def with_remembered_models(monkeypatch, module, models: list) -> None:
    """Record the models in float64; inputs are rounded to float32, because each script reads them in its own way."""
    build = module.build_model

    def remembered(settings):
        model = build(settings).double()
        model.register_forward_pre_hook(lambda _, inputs: tuple(tensor.to(torch.float32).double() for tensor in inputs))
        models.append(model)
        return model

    monkeypatch.setattr(module, "build_model", remembered)


def in_the_order_of_the_file(monkeypatch, workload: Workload) -> None:
    without_shuffling(monkeypatch, workload.naive)
    if hasattr(workload.naive, "RandomSampler"):
        monkeypatch.setattr(workload.naive, "RandomSampler", lambda data, generator: SequentialSampler(data))
    monkeypatch.setattr(hotlap.engine.order, "epoch_order", lambda rows, *_, **__: torch.arange(rows))


def with_graphs(monkeypatch, recorder: EmulatedRecorder) -> None:
    monkeypatch.setattr(hotlap.engine.trainer, "recorder_for", lambda device: recorder)
    monkeypatch.setattr(hotlap.engine.trainer.Run, "__init__", forced(hotlap.engine.trainer.Run.__init__))


def forced(start):
    @functools.wraps(start)
    def begin(run, parts):
        object.__setattr__(parts.recipe, "graph", "on")
        object.__setattr__(parts.recipe, "compile", "off")
        start(run, parts)

    return begin


@pytest.mark.parametrize("name", NAMES)
def test_the_engine_trains_to_the_weights_of_the_naive_script(
    name, data_root, tmp_path, monkeypatch, in_double
) -> None:
    monkeypatch.setenv("HOTLAP_DATA", str(tmp_path / "cache"))
    workload, models, recorder = load_workload(name), [], EmulatedRecorder()
    options, count, cycle = SHORT[name]
    folder = workload.data.ensure("tiny", root=data_root)
    if cycle:
        with_short_cycles(monkeypatch, workload.naive, cycle)
    if count:
        (tmp_path / "few").mkdir()
        folder = few_rows(folder, tmp_path / "few", count)
    in_the_order_of_the_file(monkeypatch, workload)
    with_graphs(monkeypatch, recorder)
    for module in {workload.naive, workload.fast}:
        if hasattr(module, "build_model"):
            with_remembered_models(monkeypatch, module, models)
    common = ["--size", "tiny", "--epochs", "2", *options, "--workers", "0", "--device", "cpu", "--data", str(folder)]
    for script in (workload.naive, workload.fast):
        assert script.main(common) == 0
    naive, engine = (model.state_dict() for model in models)
    assert recorder.replays >= 4
    for key, value in naive.items():
        # A step moves a weight by about 1e-3; at a gradient of almost zero, rounding decides the sign of Adam's step.
        assert torch.allclose(engine[key], value, rtol=1e-5, atol=1e-5), key
