"""Everything that fetching reads is watched: every change is seen, and no change is claimed where there is none."""

from __future__ import annotations

import collections
import os
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image, ImageFile
from torch.utils.data import Dataset

from hotlap.loading import files, state
from hotlap.loading.pure import pure
from hotlap.loading.purity import study_of
from hotlap.loading.settings import settings
from hotlap.loading.state import Watch
from hotlap.patch.guard import Guard
from hotlap.patch.seams import Seams
from hotlap.runtime.root_discovery import RootDiscovery
from hotlap.runtime.site import Site
from tests.loading import pure_sets

SCALE = 1.0
FACTORS = {"k": 1.0, "deep": [{"k": 1.0}]}


@pytest.fixture(autouse=True)
def patient(constants):
    constants(state, LEAST_SECONDS=60.0)
    constants(files, AT_EACH_BATCH=60.0)


class Slotted:
    __slots__ = ("inner", "k")

    def __init__(self):
        self.k, self.inner = 1.0, SimpleNamespace(k=1.0)


class Scaled:
    def __init__(self, k):
        self.k = k

    def __call__(self, x):
        return x * self.k


def closure():
    k = 1.0

    def read():
        return k

    def write(value):
        nonlocal k
        k = value

    return read, write


READ, WRITE = closure()


def helper(x, k=1.0, *, more=(1.0,)):
    return x * k * more[0]


class Rows(Dataset):
    member = 1.0
    shared = [1.0]  # noqa: RUF012

    def __init__(self):
        self.k, self._factor, self.slots = 1.0, 1.0, Slotted()
        self.tensor, self.array = torch.ones(8, 3), np.ones((8, 3))
        self.base = np.ones((8, 3))
        self.view = torch.from_numpy(self.base)
        self.numbers, self.names = [1.0] * 8, {"a": 1.0}
        self.nested = {"a": [(1.0, [1.0])]}
        self.queue, self.chosen = collections.deque([1.0] * 8), {1, 2}
        self.objects = np.array([[1.0], [2.0]], dtype=object)
        self.objects[0, 0] = [1.0]
        self.table = pd.DataFrame({"a": [1.0] * 8, "b": ["x"] * 8})
        self.image = Image.new("L", (4, 4))
        self.steps = [Scaled(1.0), Scaled(2.0)]
        self.tensors = [torch.ones(2) for _ in range(20)]
        self.unread = 0

    def __len__(self):
        return 8

    @property
    def factor(self):
        return self._factor

    def extra(self, x):
        return x

    def __getitem__(self, i):
        x = self.tensor[i] * self.k * self.factor * SCALE * FACTORS["k"] * FACTORS["deep"][0]["k"] * READ()
        x = x * self.slots.k * self.slots.inner.k * self.member * self.shared[0] + torch.from_numpy(self.array[i])
        x = x + self.view[i] + self.numbers[i] + self.names["a"] + self.nested["a"][0][1][0] + self.queue[i]
        x = x + len(self.chosen) + self.objects[0, 0][0] + self.table["a"].iloc[i] + self.tensors[i][0]
        x = x + self.image.getpixel((0, 0))
        for step in self.steps:
            x = step(x)
        return self.extra(helper(x))


def set_global(rows):
    global SCALE
    SCALE += 1.0


def another_method(rows):
    Rows.extra = lambda self, x: x + 1


def write_through_data(rows):
    rows.tensor.data[3] = 7


def exchange(rows):
    rows.tensor.set_(torch.zeros(8, 3))


def another_cell(rows):
    rows.table.loc[3, "a"] = 5.0


CHANGES = {
    "an attribute": lambda rows: setattr(rows, "k", 2.0),
    "an attribute exchanged for an equal number of another type": lambda rows: setattr(rows, "k", 1),
    "what a property reads": lambda rows: setattr(rows, "_factor", 2.0),
    "an attribute that shadows a member of the class": lambda rows: setattr(rows, "member", 2.0),
    "an attribute that shadows a method": lambda rows: setattr(rows, "extra", abs),
    "an attribute removed": lambda rows: delattr(rows, "k"),
    "a slot": lambda rows: setattr(rows.slots, "k", 2.0),
    "an attribute behind a slot": lambda rows: setattr(rows.slots.inner, "k", 2.0),
    "a global": set_global,
    "a global dictionary": lambda rows: FACTORS.update(k=FACTORS["k"] + 1),
    "a global dictionary, deep inside": lambda rows: FACTORS["deep"][0].update(k=FACTORS["deep"][0]["k"] + 1),
    "a variable of a closure": lambda rows: WRITE(READ() + 1),
    "a default argument": lambda rows: setattr(helper, "__defaults__", (helper.__defaults__[0] + 1,)),
    "a default of a keyword": lambda rows: helper.__kwdefaults__.update(more=(helper.__kwdefaults__["more"][0] + 1,)),
    "the code of a function": lambda rows: setattr(helper, "__code__", helper.__code__.replace(co_name="other")),
    "a member of the class": lambda rows: setattr(Rows, "member", Rows.member + 1),
    "a list of the class": lambda rows: Rows.shared.__setitem__(0, Rows.shared[0] + 1),
    "a method of the class": another_method,
    "an element of a list": lambda rows: rows.numbers.__setitem__(3, 2.0),
    "an element of a list, minus zero": lambda rows: rows.numbers.__setitem__(3, -0.0),
    "a list that grows": lambda rows: rows.numbers.append(1.0),
    "an element of a dictionary": lambda rows: rows.names.update(a=2.0),
    "a key of a dictionary": lambda rows: rows.names.update(b=2.0),
    "an element of a deque": lambda rows: rows.queue.rotate(1) or rows.queue.append(2.0) or rows.queue.popleft(),
    "a set": lambda rows: rows.chosen.add(3),
    "a set of the same size": lambda rows: rows.chosen.add(3) or rows.chosen.remove(1),
    "deep in containers": lambda rows: rows.nested["a"][0][1].__setitem__(0, 2.0),
    "a container deep inside": lambda rows: rows.nested["a"].append(1),
    "a tensor": lambda rows: rows.tensor.__setitem__((3, 1), 7),
    "a tensor by its data": write_through_data,
    "a tensor through its array": lambda rows: rows.tensor.numpy().__setitem__((3, 1), 7),
    "a tensor's memory": exchange,
    "a tensor in a long list": lambda rows: rows.tensors[17].add_(1),
    "a tensor in a long list, by its data": lambda rows: rows.tensors[17].data.add_(1),
    "an array": lambda rows: rows.array.__setitem__((3, 1), 7),
    "an array that a tensor stands on": lambda rows: rows.base.__setitem__((3, 1), 7),
    "an array of objects": lambda rows: rows.objects[0, 0].__setitem__(0, 2.0),
    "an object of an array": lambda rows: rows.objects.__setitem__((0, 0), [3.0]),
    "a cell of a table": another_cell,
    "a column of a table": lambda rows: rows.table.__setitem__("a", 2.0),
    "a pixel": lambda rows: rows.image.putpixel((2, 2), 9),
    "an object in a list": lambda rows: setattr(rows.steps[1], "k", 3.0),
    "another object in a list": lambda rows: rows.steps.__setitem__(1, Scaled(2.0)),
    "one object more in a list": lambda rows: rows.steps.append(Scaled(1.0)),
}


@pytest.fixture
def namespace_restored():
    """Restores what the changes leave in this module."""
    held = SCALE, Rows.member, Rows.extra, helper.__defaults__, helper.__kwdefaults__, helper.__code__
    yield
    globals()["SCALE"], Rows.member, Rows.extra, helper.__defaults__, helper.__kwdefaults__, helper.__code__ = held


def watched(dataset):
    watch = Watch(torch, study_of(dataset))
    watch.closely(60.0)
    assert watch.changed_now() is None
    assert watch.changed_at_epoch() is None
    return watch


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_change_is_seen(change, namespace_restored):
    rows = Rows()
    watch = watched(rows)
    change(rows)
    assert watch.changed_now() is not None
    assert watch.changed_at_epoch() is not None


@pytest.mark.parametrize(
    "use",
    [
        lambda rows: [rows[i] for i in range(8)],
        lambda rows: setattr(rows, "unread", 5),
        lambda rows: setattr(rows, "k", float("1")),
        lambda rows: rows.numbers.__setitem__(3, float("1")),
        lambda rows: rows.tensor.sum(),
        lambda rows: rows.table["a"].mean(),
    ],
)
def test_no_change_is_claimed(use):
    rows = Rows()
    watch = watched(rows)
    use(rows)
    assert watch.changed_now() is None
    assert watch.changed_at_epoch() is None


def test_inference_tensors_have_no_version_and_are_compared():
    rows = Rows()
    with torch.inference_mode():
        rows.tensor = torch.ones(8, 3)
    watch = watched(rows)
    with torch.inference_mode():
        rows.tensor[2] = 5
    assert watch.changed_now() is not None


def test_a_dataset_is_not_kept_alive():
    import gc
    import weakref

    rows = Rows()
    watch, reference = watched(rows), weakref.ref(rows)
    del rows
    gc.collect()
    assert reference() is None
    assert watch is not None


@pytest.mark.parametrize("name", ["default dtype", "threads", "function mode"])
def test_a_setting_is_seen(name):
    rows, threads = Rows(), torch.get_num_threads()
    watch = watched(rows)
    if name == "default dtype":
        torch.set_default_dtype(torch.float64)
    elif name == "threads":
        torch.set_num_threads(threads + 1)
    else:
        mode = torch.device("meta")
        mode.__enter__()
    try:
        assert watch.changed_now() == watch.changed_at_epoch() == "a setting"
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(threads)
        if name == "function mode":
            mode.__exit__(None, None, None)
    assert watch.changed_now() is None


class Mapped(Dataset):
    def __init__(self, path):
        self.rows = np.memmap(path, dtype=np.float32, mode="r+", shape=(8,))

    def __len__(self):
        return 8

    def __getitem__(self, i):
        return torch.tensor(self.rows[i])


def test_a_change_in_a_memory_map_is_seen_whoever_writes_it(tmp_path):
    path = tmp_path / "rows.bin"
    np.ones(8, dtype=np.float32).tofile(path)
    rows = Mapped(path)
    watch = watched(rows)
    assert watch.is_shared
    with path.open("r+b") as file:
        file.write(b"\1\2\3\4")
    assert watch.changed_now() is not None


class Files(Dataset):
    def __init__(self, folder):
        self.folder = folder

    def __len__(self):
        return 3

    def __getitem__(self, i):
        return torch.from_numpy(np.load(os.path.join(self.folder, f"{i}.npy")))


def rewrite(folder):
    np.save(f"{folder}/1.npy", np.ones(5))


def replace(folder):
    np.save(f"{folder}/new.npy", np.ones(4))
    os.replace(f"{folder}/new.npy", f"{folder}/1.npy")


def remove(folder):
    os.remove(f"{folder}/1.npy")


@pytest.mark.parametrize("change", [rewrite, replace, remove, lambda folder: os.truncate(f"{folder}/1.npy", 3)])
@pytest.mark.parametrize("here", [True, False])
def test_a_write_to_a_file_is_seen(change, here, tmp_path):
    for number in range(3):
        np.save(tmp_path / f"{number}.npy", np.zeros(4))
    rows = Files(str(tmp_path))
    watch = watched(rows)
    [rows[i] for i in range(3)]
    assert watch.changed_now() is None
    if here:
        change(str(tmp_path))
    else:
        in_a_fork(lambda: change(str(tmp_path)))
    assert watch.changed_now() is not None


def in_a_fork(work):
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def test_a_changed_working_directory_means_another_file(tmp_path, monkeypatch):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "one")
    os.mkdir("rows")
    for number in range(3):
        np.save(f"rows/{number}.npy", np.zeros(4))
    rows = Files("rows")
    watch = watched(rows)
    monkeypatch.chdir(tmp_path / "two")
    assert watch.changed_now() == "a setting"


def test_what_pandas_writes_is_a_setting_and_its_import_is_none(monkeypatch):
    before = settings(torch)
    defaults = {f"display.{name}": SimpleNamespace(defval=6) for name in ("precision", "html.border")}
    options = {"display": {"precision": 6, "html": {"border": 6}}}
    config = ModuleType("pandas._config.config")
    vars(config).update(_registered_options=defaults, _global_config=options)
    monkeypatch.setitem(sys.modules, "pandas._config.config", config)
    assert settings(torch) == before
    options["display"]["html"]["border"] = 1
    assert settings(torch) != before


@pytest.mark.parametrize("name", ["__float__", "__add__"])
def test_an_operator_of_tensors_that_we_wrap_is_no_change_and_one_of_the_programs_is(name, monkeypatch):
    before, original = settings(torch), getattr(torch.Tensor, name)
    seams = Seams(torch, Guard(strict=True))
    site = Site("early-read", "C115", None, torch, seams, RootDiscovery(seams))
    site.replace(torch.Tensor, name, lambda original, tensor, args, kwargs: original(*args, **kwargs))
    assert getattr(torch.Tensor, name) is not original
    assert settings(torch) == before
    site.close()
    assert settings(torch) == before
    monkeypatch.setattr(torch.Tensor, name, lambda *_: 1.0)
    assert settings(torch) != before


def test_a_pillow_module_imported_later_is_no_change(monkeypatch):
    assert not ImageFile.LOAD_TRUNCATED_IMAGES
    imported = settings(torch)
    monkeypatch.delitem(sys.modules, "PIL.ImageFile")
    assert settings(torch) == imported
    monkeypatch.delitem(sys.modules, "PIL.Image")
    assert settings(torch) == imported


def test_a_plugin_that_pillow_imports_with_the_first_image_is_no_change(tmp_path, constants):
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    photographs = pure_sets.Photographs(files=[str(tmp_path / "a.png")] * 50)
    constants(Image, ID=[])
    known = pure(photographs)
    watch = known.watch(torch)
    Image.ID.append("PNG")
    assert watch.changed_at_epoch() is None
