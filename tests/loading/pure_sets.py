"""Realistic datasets whose fetching is pure, so they must not be refused."""

from __future__ import annotations

import bisect
import collections
import functools
import hashlib
import io
import json
import math
import os
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import h5py
import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from PIL import Image
from torch.utils.data import ConcatDataset, Dataset, StackDataset, Subset, TensorDataset, default_collate

CASES: dict[str, object] = {}


def pure(**held):
    def register(kind):
        CASES[kind.__name__] = kind(**held)
        return kind

    return register


class Base(Dataset):
    def __init__(self, **held):
        self.x, self.a, self.y = torch.randn(50, 8), np.random.randn(50, 8), torch.zeros(50, 1)
        self.__dict__.update(held)

    def __len__(self):
        return len(self.x)


class Tokenizer:
    def __init__(self):
        self.ids = {letter: number for number, letter in enumerate("abcdef ")}

    def encode(self, text):
        return [self.ids.get(letter, 0) for letter in text]


class Scale:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x):
        return x * self.factor


class Compose:
    def __init__(self, steps):
        self.steps = steps

    def __call__(self, x):
        for step in self.steps:
            x = step(x)
        return x


class Sample(NamedTuple):
    path: str
    label: int


@dataclass
class Box:
    left: float
    right: float

    def width(self):
        return self.right - self.left


class Split(Enum):
    TRAIN = "train"


def plainly(f):
    @functools.wraps(f)
    def inner(*args):
        return f(*args)

    return inner


@pure()
class WritesIntoACopy(Base):
    def __getitem__(self, i):
        x = self.x[i].clone()
        x += 1
        x[0] = 3
        x.mul_(2)
        return {"x": x.float(), "y": torch.tensor(self.a[i]).float(), "name": f"item {i}"}


@pure()
class Normalized(Base):
    def __getitem__(self, i):
        x = self.a[i].astype(np.float32) / 255.0
        x = (x - x.mean()) / (x.std() + 1e-6)
        shifted = []
        for step in range(3):
            shifted.append(np.roll(x, step))
        return torch.from_numpy(np.stack(shifted)), int(self.y[i].item())


@pure()
class Helper(Base):
    def padded(self, i, by=3):
        return F.pad(self.x[i], (by, by))

    def __getitem__(self, i):
        return self.padded(i), torch.as_tensor(i % 2, dtype=torch.float32)


@pure()
class Super(Helper):
    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return x * 2, y


@pure(transform=None)
class NoTransform(Base):
    def __getitem__(self, i):
        x = self.x[i]
        if self.transform is not None:
            x = self.transform(x)
        return x


CASES["a lambda"] = NoTransform(transform=lambda x: x * 2)
CASES["a partial"] = NoTransform(transform=functools.partial(torch.clamp, min=0))
CASES["transforms in each other"] = NoTransform(transform=Compose([Compose([Scale(2)]), torch.abs, Scale(3)]))


@pure(tokenizer=Tokenizer(), texts=["abc", "def"] * 25)
class Text(Base):
    def __getitem__(self, i):
        ids = self.tokenizer.encode(self.texts[i])[:10]
        ids = torch.tensor(ids + [0] * (10 - len(ids)), dtype=torch.long)
        return ids[:-1], ids[1:]


@pure(df=pd.DataFrame({"a": [1, 2], "b": [3.0, 4], "c": ["u", "v"]}))
class Table(Base):
    def __getitem__(self, i):
        row = self.df.iloc[i]
        return torch.tensor(row[["a", "b"]].values.astype(np.float32)), row["c"]


@pure(root="rows", files=["a.npy", "b.npy"])
class Arrays(Base):
    def __getitem__(self, i):
        return torch.from_numpy(np.load(os.path.join(self.root, self.files[i])))


@pure(samples=[Sample("a.png", 1)] * 50)
class Images(Base):
    def __getitem__(self, i):
        sample = self.samples[i]
        with open(sample.path, "rb") as file:
            image = Image.open(file).convert("RGB").resize((8, 8))
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255, sample.label


@pure(files=["a.png"] * 50)
class Photographs(Base):
    def __getitem__(self, i):
        return torch.from_numpy(np.array(Image.open(self.files[i]).convert("RGB")))


@pure()
class Spectra(Base):
    def __getitem__(self, i):
        return torch.from_numpy(np.abs(np.fft.rfft(self.a[i]))), self.y[i]


@pure(root=Path("labels"), names=["a", "b"])
class Labels(Base):
    def __getitem__(self, i):
        text = (self.root / f"{self.names[i]}.txt").read_text()
        rows = [[float(word) for word in line.split()] for line in text.splitlines() if line.strip()]
        boxes = np.array(rows, dtype=np.float32).reshape(-1, 5)
        boxes[:, 1:] *= 640
        return torch.from_numpy(boxes), {"image_id": i}


@pure(path="rows.h5", file=None)
class LazilyOpened(Base):
    def __getitem__(self, i):
        if self.file is None:
            self.file = h5py.File(self.path, "r")
        return torch.tensor(self.file["x"][i])


@pure(path="rows.h5")
class LazilyOpenedByMethod(Base):
    def open(self):
        self.file = h5py.File(self.path, "r")
        self.rows = self.file["x"]

    def __getitem__(self, i):
        if not hasattr(self, "file"):
            self.open()
        return torch.tensor(self.rows[i])


@pure(names=["b", "A"])
class SortsByAMethodOfText(Base):
    def __getitem__(self, i):
        return self.x[i] * len(sorted(self.names, key=str.lower)[0])


@pure()
class ReducesAndHashes(Base):
    def __getitem__(self, i):
        total = functools.reduce(lambda a, b: a * b, [1.0, 2.0, self.x[i].quantile(0.5)])
        text = hashlib.md5(str(i).encode("utf-8")).hexdigest()
        return torch.einsum("i,i->i", self.x[i], self.x[i]) * total * int(text[:2], 16)


@pure(path="rows.h5", _file=None)
class LazilyOpenedByProperty(Base):
    @property
    def file(self):
        if self._file is None:
            self._file = h5py.File(self.path, "r")
        return self._file

    def __getitem__(self, i):
        return torch.tensor(self.file["x"][i])


@pure(blobs=[b"abc"] * 50)
class Bytes(Base):
    def __getitem__(self, i):
        return torch.from_numpy(np.frombuffer(self.blobs[i], dtype=np.uint8).copy())


@pure(blobs=[b"abc"] * 50)
class Decoded(Base):
    def __getitem__(self, i):
        return torch.from_numpy(np.array(Image.open(io.BytesIO(self.blobs[i]))))


@pure(lines=['{"a": 1}'] * 50)
class JsonLines(Base):
    def __getitem__(self, i):
        row = json.loads(self.lines[i])
        return torch.tensor([row["a"], row.get("b", 0)])


@pure(window=5)
class Windows(Base):
    def __len__(self):
        return len(self.x) - self.window

    def __getitem__(self, i):
        return self.x[i : i + self.window], self.x[i + self.window]


@pure(ends=[10, 30, 50])
class Bisected(Base):
    def __getitem__(self, i):
        if i < 0:
            if -i > len(self):
                raise ValueError("out of range")
            i = len(self) + i
        part = bisect.bisect_right(self.ends, i)
        return self.x[i] * part


@pure(config=SimpleNamespace(scale=2.0, split=Split.TRAIN))
class Configured(Base):
    def __getitem__(self, i):
        x = self.x[i] * self.config.scale
        if self.config.split is Split.TRAIN:
            x = x + 1
        return x


@pure()
class MakesObjects(Base):
    def __getitem__(self, i):
        box = Box(1.0, 3.0)
        return self.x[i] * box.width()


@pure()
class MakesDicts(Base):
    def __getitem__(self, i):
        item = {"x": self.x[i]}
        item["y"] = self.y[i]
        item.update(z=torch.zeros(3))
        return {name: value for name, value in item.items() if value is not None}


@pure(groups={"a": [1, 2], "b": [3]})
class Grouped(Base):
    def __getitem__(self, i):
        total = 0
        for name, rows in self.groups.items():
            for row in rows:
                total += row * len(name)
        return self.x[i] * total


@pure()
class MapsAndZips(Base):
    def __getitem__(self, i):
        pairs = list(zip(range(3), self.x[i].tolist(), strict=False))
        left, right = zip(*pairs, strict=True)
        return (
            torch.tensor(list(map(float, left))),
            torch.tensor(sorted(right, key=lambda v: -v)),
            sum(v for v in right),
        )


@pure()
class Private(Base):
    def __init__(self, **held):
        super().__init__(**held)
        self.__scale = 2.0

    def __scaled(self, x):
        return x * self.__scale

    def __getitem__(self, i):
        return self.__scaled(self.x[i])


@pure()
class Checked(Base):
    def __getitem__(self, i):
        if torch.is_tensor(i):
            i = i.tolist()
        try:
            label = float(self.y[i])
        except (TypeError, ValueError):
            label = 0.0
        finally:
            scale = math.sqrt(2)
        return self.x[i] * scale, label


@pure()
class Decorated(Base):
    @plainly
    def __getitem__(self, i):
        return self.x[i]


@pure()
class OldConstructors(Base):
    def __getitem__(self, i):
        return torch.FloatTensor(self.a[i].tolist()), torch.LongTensor([i])


@pure()
class NoGrad(Base):
    def __getitem__(self, i):
        with torch.no_grad():
            mean = self.x.mean(0)
        return self.x[i] - mean


@pure()
class SeveralAtOnce(Base):
    def __getitem__(self, i):
        return self.x[i], self.y[i]

    def __getitems__(self, rows):
        return list(zip(self.x[rows], self.y[rows], strict=True))


@pure(rows=collections.deque(range(50)), names=collections.OrderedDict(a=1))
class OtherContainers(Base):
    def __getitem__(self, i):
        return self.rows[i] + self.names["a"]


@pure(boxes=[[[1, 2, 3, 4]]] * 50)
class Boxes(Base):
    def __getitem__(self, i):
        boxes = np.array(self.boxes[i], dtype=np.float32)
        boxes[:, 2] += boxes[:, 0]
        target = {"boxes": torch.as_tensor(boxes), "area": (boxes[:, 2] - boxes[:, 0])}
        return self.x[i], target


CASES["nested"] = Subset(ConcatDataset([WritesIntoACopy(), Normalized()]), [1, 2, 3])
CASES["stacked"] = StackDataset(WritesIntoACopy(), Normalized())
CASES["tensors"] = TensorDataset(torch.zeros(5, 2), torch.zeros(5))
CASES["a list"] = [(torch.zeros(3), 1)] * 5


def stacking(samples):
    return torch.stack([sample[0] for sample in samples]), torch.tensor([sample[1] for sample in samples])


def padding(samples):
    rows, labels = zip(*samples, strict=True)
    longest = max(len(row) for row in rows)
    padded = torch.zeros(len(rows), longest)
    for at, row in enumerate(rows):
        padded[at, : len(row)] = row
    return padded, torch.tensor(labels)


def padding_by_torch(samples):
    samples = sorted(samples, key=lambda sample: len(sample[0]), reverse=True)
    rows = torch.nn.utils.rnn.pad_sequence([sample[0] for sample in samples], batch_first=True)
    return rows, torch.tensor([len(sample[0]) for sample in samples])


def tupled(samples):
    return tuple(zip(*samples, strict=True))


def without_missing(samples):
    return default_collate([sample for sample in samples if sample is not None])


COLLATES = [stacking, padding, padding_by_torch, tupled, without_missing]


@pure(folder=Path("masks"), names=["a", "b"])
class Globs(Base):
    def __getitem__(self, i):
        found = list(self.folder.glob(self.names[i] + ".*"))
        assert len(found) == 1, f"either none or several: {found}"
        return torch.from_numpy(np.load(found[0]))


@pure(folder="masks")
class Lists(Base):
    def __getitem__(self, i):
        return torch.from_numpy(np.load(os.path.join(self.folder, sorted(os.listdir(self.folder))[i])))


@pure(pixels=torch.zeros(50, 8, dtype=torch.uint8))
class Converted(Base):
    """A conversion to another dtype makes a new tensor, which may be written into."""

    def __getitem__(self, index):
        x = self.pixels[index].float().div_(255)
        y = self.pixels[index].to(torch.float64)
        y -= 1
        return x, y
