"""Data in the forms that people have it in, and what is said about a form that is not data yet."""

from __future__ import annotations

import h5py
import numpy as np
import pandas
import pytest
import torch
import webdataset
from torch.utils.data import DataLoader, IterableDataset

from hotlap.engine.data import DataUnreadable, Folder, Hdf5, Loader
from hotlap.engine.errors import BadRecipe
from tests.engine.training import fitted, numbers, outcome, same, trainer

INPUTS, TARGETS = numbers()


def fit_by(train, **options):
    said = []
    return fitted(train=train, shuffle=False, say=said.append, **options), said


def unshuffled():
    return outcome(*fitted(shuffle=False))


class InBatches(IterableDataset):
    """Batches of other sizes than the training's."""

    def __init__(self, sizes):
        self.sizes = sizes

    def __iter__(self):
        yield from zip(INPUTS.split(self.sizes), TARGETS.split(self.sizes), strict=True)


@pytest.mark.parametrize("sizes", [[16, 16, 16, 16, 6], [1] * 70, [70], [20, 30, 20]], ids=str)
def test_an_iterable_may_bring_batches_of_any_size(sizes):
    data = Loader(DataLoader(InBatches(sizes), batch_size=None), rows=70)
    found, _ = fit_by(data)
    same(outcome(*found), unshuffled())


def test_an_iterable_is_evaluated_in_batches_of_another_size():
    class Rows(IterableDataset):
        def __iter__(self):
            yield from zip(INPUTS, TARGETS, strict=True)

    made = trainer(evaluation_batch=50)
    assert made.evaluate(Loader(Rows(), rows=70)) == made.evaluate((INPUTS, TARGETS))
    assert torch.equal(made.predict(Loader(Rows(), rows=70)), made.predict((INPUTS, TARGETS)))


def test_sequences_laid_out_by_step_are_neither_joined_nor_cut():
    class BySteps(IterableDataset):
        def __iter__(self):
            for first in range(0, 70, 16):
                rows = slice(first, first + 16)
                yield INPUTS[rows].unsqueeze(0).expand(3, -1, -1), TARGETS[rows]

    seen = []

    def step(model, batch):
        seen.append(tuple(tuple(tensor.shape) for tensor in batch))
        return torch.nn.functional.mse_loss(model(batch[0][0]), batch[1])

    data = Loader(DataLoader(BySteps(), batch_size=None), rows=70)
    found = fitted(train=data, loss=None, step=step, shuffle=False, epochs=1, onednn="off", threads=1)
    assert seen == [((3, 16, 6), (16, 1))] * 4 + [((3, 6, 6), (6, 1))]
    assert found[1].last.rows == 70


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    path = tmp_path_factory.mktemp("archive") / "rows.tar"
    with webdataset.TarWriter(str(path)) as rows:
        for number in range(70):
            entry = {"x.npy": INPUTS[number].numpy(), "y.npy": TARGETS[number].numpy()}
            rows.write({"__key__": f"{number:03}", **entry})
    return str(path)


def test_webdataset_trains_row_by_row_and_batch_by_batch(archive):
    rows = webdataset.WebDataset(archive, shardshuffle=False).decode().to_tuple("x.npy", "y.npy")
    by_name = webdataset.WebDataset(archive, shardshuffle=False).decode()
    batches = webdataset.WebDataset(archive, shardshuffle=False).decode().to_tuple("x.npy", "y.npy").batched(32)
    for data in (
        Loader(rows, rows=70),
        Loader(by_name, rows=70, columns=("x.npy", "y.npy")),
        Loader(DataLoader(batches, batch_size=None), rows=70),
    ):
        same(outcome(*fit_by(data)[0]), unshuffled())


@pytest.mark.thorough
def test_datasets_of_hugging_face_are_kept_or_streamed():
    import datasets

    data = datasets.Dataset.from_dict({"x": INPUTS.numpy(), "y": TARGETS.numpy()})
    found, said = fit_by(data.with_format("torch"))
    assert "70 rows kept in the memory of cpu" in said[0]
    same(outcome(*found), unshuffled())
    same(outcome(*fit_by(data)[0]), unshuffled())  # lists
    same(outcome(*fit_by(Loader(data.to_iterable_dataset(), rows=70))[0]), unshuffled())
    same(outcome(*fit_by(Loader(data.with_format("torch").to_iterable_dataset(), rows=70))[0]), unshuffled())
    splits = datasets.DatasetDict({"train": data})
    with pytest.raises(
        BadRecipe, match=r"the training split is a DatasetDict; give one of its splits, .*data\['train'\]"
    ):
        fit_by(splits)


def test_folders_of_tables_train_as_one(tmp_path):
    frame = pandas.DataFrame(np.concatenate([INPUTS.numpy(), TARGETS.numpy()], 1), columns=[*"abcdef", "y"])
    for part, rows in (("1", slice(0, 30)), ("2", slice(30, 70))):
        (tmp_path / "parquet").mkdir(exist_ok=True)
        (tmp_path / "csv").mkdir(exist_ok=True)
        frame[rows].to_parquet(tmp_path / "parquet" / f"{part}.parquet")
        frame[rows].to_csv(tmp_path / "csv" / f"{part}.csv", index=False)
    for kind in ("parquet", "csv"):
        same(outcome(*fit_by(Folder(tmp_path / kind, tuple("abcdef"), ("y",)))[0]), unshuffled())
    with pytest.raises(DataUnreadable, match=r"there is no \.csv, \.parquet, \.arrow or \.feather file in this folder"):
        Folder(tmp_path)
    frame.to_csv(tmp_path / "parquet" / "3.csv")
    with pytest.raises(DataUnreadable, match="files of several kinds"):
        Folder(tmp_path / "parquet")


@pytest.mark.parametrize("kind", ["arrays", "loader", "iterable"])
def test_float64_becomes_the_float32_of_the_model(kind):
    wide = (INPUTS.double().numpy(), TARGETS.double().numpy())
    pairs = list(zip(*map(torch.from_numpy, wide), strict=True))

    class Rows(IterableDataset):
        def __iter__(self):
            yield from pairs

    data = {"arrays": wide, "loader": pairs, "iterable": Loader(Rows(), rows=70)}[kind]
    same(outcome(*fit_by(data)[0]), unshuffled())


def test_a_model_in_float64_gets_float64():
    made = trainer()
    made.model.double()
    assert made.predict((INPUTS.double().numpy(),)).dtype is torch.float64


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda folder: folder, "give a reader of it: Folder"),
        (lambda folder: str(folder), "give a reader of it: Folder"),
        (lambda folder: pandas.DataFrame({"a": [1.0], "y": [2.0]}), r"DataFrame; give arrays of its columns: \(frame"),
        (lambda folder: {"train": [1], "test": [2]}, r"give one of its splits, such as data\['train'\]"),
        (lambda folder: (h5py.File(folder / "rows.h5", "r")["x"],), r"give the reader Hdf5\(file, …\)"),
    ],
    ids=["path", "string", "frame", "splits", "hdf5"],
)
def test_names_what_to_give_instead(given, message, tmp_path):
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["x"] = INPUTS.numpy()
    with pytest.raises(BadRecipe, match=message):
        trainer().fit(given(tmp_path), epochs=1)
    assert Hdf5(tmp_path / "rows.h5", "x").rows == 70
