"""Programs that change what their items are made from see the change exactly when they would without hotlap."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.loading.test_programs import all_is_imported, ran

__all__ = ["all_is_imported"]  # a fixture

HEAD = """
import functools, json, os, pathlib, subprocess
import h5py, numpy as np, torch
from torch import nn
from torch.utils.data import *

N = 48
X = torch.randn(N, 6, generator=torch.Generator().manual_seed(1))
Y = (X.sum(1, keepdim=True) > 0).float()

class Rows(Dataset):
    def __init__(self, x=X, y=Y):
        self.x, self.y = x.clone(), y.clone()
    def __len__(self):
        return N
    def __getitem__(self, i):
        return self.x[i] * 1.0, self.y[i] * 1.0

class Double(nn.Module):
    def forward(self, x):
        return x * 2.0

class Doubled(Rows):
    def __init__(self):
        super().__init__()
        self.transform = Double()
    def __getitem__(self, i):
        return self.transform(self.x[i]), self.y[i] * 1.0

def train(loader, change=lambda epoch: None, within=lambda epoch, step: None, epochs=4):
    torch.manual_seed(0)
    net, out = nn.Linear(6, 1), []
    optim = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(epochs):
        change(epoch)
        for step, batch in enumerate(loader() if callable(loader) else loader):
            x, y = batch[:2] if isinstance(batch, (list, tuple)) else (batch["x"], batch["y"])
            x = x.float().reshape(len(x), -1)[:, :6]
            loss = (net(x) - y.float().reshape(len(x), -1)[:, :1]).square().mean()
            optim.zero_grad(); loss.backward(); optim.step()
            out.append(loss.item())
            within(epoch, step)
    return out
"""

PROGRAMS = {
    "a list of samples": """
items = [(X[i], Y[i]) for i in range(N)]
def change(e):
    if e == 2: items[7] = (X[7] * 9, Y[7])
def run(): return train(DataLoader(items, 8), change)
""",
    "arrays in a list, more than eight megabytes": """
class Large(Rows):
    def __init__(self):
        self.parts = [np.full((200_000,), i / N) for i in range(N)]
    def __getitem__(self, i):
        return self.parts[i][:6] * 1.0, self.parts[i][-1:] * 1.0
rows = Large()
def change(e):
    if e == 2: rows.parts[7][:] = 3
def run(): return train(DataLoader(rows, 8), change)
""",
    "one of two partials as collate_fn": """
def collate(samples, scale):
    return {"x": torch.stack([s[0] for s in samples]) * scale, "y": torch.stack([s[1] for s in samples])}
rows = Rows()
def run():
    return [train(DataLoader(rows, 8, collate_fn=functools.partial(collate, scale=k))) for k in (1.0, -1.0, 1.0)]
""",
    "a tensor that the collate_fn stacks twice": """
wide = torch.randn(N, 2048, generator=torch.Generator().manual_seed(2))
class Wide(Rows):
    def __getitem__(self, i): return wide[i] * 1.0
def collate(samples): return {"x": torch.stack(samples), "y": torch.stack(samples)}
def loader():
    for batch in DataLoader(WIDE, 8, collate_fn=collate):
        batch["x"].add_(1)
        yield batch
WIDE = Wide()
def run(): return train(loader)
""",
    "a collate object made anew, and changed within the epoch": """
wide = torch.randn(N, 2048, generator=torch.Generator().manual_seed(2))
class Wide(Rows):
    def __getitem__(self, i): return wide[i] * 1.0
class Collate:
    scale = 1.0
    def __init__(self): self.k = 1.0
    def __call__(self, samples): return {"x": torch.stack(samples), "y": torch.tensor([[self.k]] * len(samples))}
rows = Wide()
def loader():
    global made
    made = Collate()
    return DataLoader(rows, 8, collate_fn=made)
def within(e, s):
    if (e, s) == (2, 2): made.k = 5.0
def run(): return train(loader, within=within)
""",
    "a whole number that becomes another kind of number": """
def maker(k): return lambda samples: [torch.stack([s[0] for s in samples]), torch.tensor([[k]] * len(samples))]
rows = Rows()
def run(): return [str(next(iter(DataLoader(rows, 8, collate_fn=maker(k))))[1].dtype) for k in (1, 1, 1.0, True)]
""",
    "a class": """
class Hard(Rows):
    def __getitem__(self, i): return self.x[i] * 3.0, self.y[i] * 1.0
rows = Rows()
def change(e):
    if e == 2: rows.__class__ = Hard
def run(): return train(DataLoader(rows, 8), change)
""",
    "the class of a transform": """
class Once:
    def __call__(self, x): return x * 1.0
class Thrice:
    def __call__(self, x): return x * 3.0
class Transformed(Rows):
    transform = Once()
    def __getitem__(self, i): return self.transform(self.x[i]), self.y[i] * 1.0
rows = Transformed()
def change(e):
    if e == 2: Transformed.transform.__class__ = Thrice
def run(): return train(DataLoader(rows, 8), change)
""",
    "a name that a class has inherited": """
class Base: factor = 1.0
class Config(Base): pass
class Scaled(Rows):
    def __getitem__(self, i): return self.x[i] * Config.factor, self.y[i] * 1.0
rows = Scaled()
def change(e):
    if e == 2: Config.factor = 3.0
def run(): return train(DataLoader(rows, 8), change)
""",
    "the forward of a transform": """
rows = Doubled()
def change(e):
    if e == 2: rows.transform.forward = lambda x: x * 5.0
def run(): return train(DataLoader(rows, 8), change)
""",
    "hooks of a transform": """
rows = Doubled()
def change(e):
    if e == 2: rows.transform.register_forward_hook(lambda m, given, y: y * (3.0 if given[0][0] > 1 else 1.0))
def run(): return train(DataLoader(rows, 8), change)
""",
    "hooks of all modules": """
rows = Doubled()
def change(e):
    if e == 2:
        nn.modules.module.register_module_forward_hook(lambda m, given, y: y * 3.0 if isinstance(m, Double) else y)
def run(): return train(DataLoader(rows, 8), change)
""",
    "a method of torch's dataset": """
data, original = TensorDataset(X, Y), TensorDataset.__getitem__
def replaced(self, i):
    x, y = original(self, i)
    return x * (3.0 if i % 20 == 3 else 1.0), y
def change(e):
    if e == 2: TensorDataset.__getitem__ = replaced
def run(): return train(DataLoader(data, 8), change)
""",
    "a method of torch's dataset, before": """
data, original = TensorDataset(X, Y), TensorDataset.__getitem__
def run():
    TensorDataset.__getitem__ = lambda self, i: (X[i] * (3.0 if i % 20 == 13 else 1.0), Y[i])
    return train(DataLoader(data, 8))
""",
    "a method of tensors": """
class Squashed(Rows):
    def __getitem__(self, i): return self.x[i].sigmoid(), self.y[i] * 1.0
rows = Squashed()
def change(e):
    if e == 2: torch.Tensor.sigmoid = lambda self: self * 2
def run(): return train(DataLoader(rows, 8), change)
""",
    "a file that comes to be there": """
class Labelled(Rows):
    def __getitem__(self, i):
        try:
            y = np.load(f"labels/{i}.npy")
        except FileNotFoundError:
            y = np.zeros(1)
        return self.x[i] * 1.0, y
os.mkdir("labels"); np.save("labels/0.npy", np.ones(1))
rows = Labelled()
def change(e):
    if e == 2: np.save("labels/9.npy", np.ones(1))
def run(): return train(DataLoader(rows, 8), change)
""",
    "a file whose presence is asked for": """
class Labelled(Rows):
    def __getitem__(self, i):
        return self.x[i] * 1.0, np.ones(1) if os.path.exists(f"labels/{i}.npy") else np.zeros(1)
os.mkdir("labels")
rows = Labelled()
def change(e):
    if e == 2: np.save("labels/9.npy", np.ones(1))
def run(): return train(DataLoader(rows, 8), change)
""",
    "where a link leads": """
for name, k in (("a", 1.0), ("b", 3.0)):
    os.mkdir(name)
    for i in range(N): np.save(f"{name}/{i}.npy", X[i].numpy() * (k if i == 40 else 1.0))
os.symlink("a", "now")
class Files(Rows):
    root = os.path.abspath("now")
    def __getitem__(self, i): return np.load(f"{self.root}/{i}.npy"), self.y[i] * 1.0
rows = Files()
def change(e):
    if e == 2: os.symlink("b", "next"); os.replace("next", "now")
def run(): return train(DataLoader(rows, 8), change)
""",
    "a file in the folder where the program runs": """
for i in range(N): np.save(f"{i}.npy", X[i].numpy())
json.dump([1.0] * N, open("labels.json", "w"))
class Files(Rows):
    root = "."
    def __getitem__(self, i):
        return np.load(os.path.join(self.root, f"{i}.npy")), np.array([json.load(open("labels.json"))[i]])
rows = Files()
def change(e):
    if e == 2: np.save("9.npy", X[9].numpy() * 5)
def run(): return train(DataLoader(rows, 8), change)
""",
    "one of many files, by another process": """
os.mkdir("files")
for i in range(N): np.save(f"files/{i}.npy", X[i].numpy())
np.save("other.npy", X[0].numpy() * 7)
class Files(Rows):
    root = os.path.abspath("files")
    def __getitem__(self, i): return np.load(f"{self.root}/{i}.npy"), self.y[i] * 1.0
rows = Files()
def change(e):
    if e == 2: subprocess.run(["cp", "other.npy", "files/41.npy"], check=True)
def run(): return train(DataLoader(rows, 8), change)
""",
    "an HDF5 file that is open for writing": """
with h5py.File("data.h5", "w") as file: file["x"] = X.numpy(); file["y"] = Y.numpy()
class Tables(Rows):
    def __init__(self):
        self.file = h5py.File("data.h5", "r+")
        self.xs, self.ys = self.file["x"], self.file["y"]
    def __getitem__(self, i): return self.xs[i], self.ys[i]
rows = Tables()
def change(e):
    if e == 2: rows.ys[7] = 9
def run(): return train(DataLoader(rows, 8), change)
""",
    "labels beside large data, whose workers stay": """
class Flipped(Rows):
    def __init__(self):
        self.x, self.y = torch.zeros(N, 200_000), [0.0] * N
        self.x[:, :6] = X
    def __getitem__(self, i):
        x = self.x[i, :6]
        return (x.flip(0) if torch.rand(()) < 0.5 else x * 1.0), torch.tensor([self.y[i]])
rows = Flipped()
def change(e):
    if e == 2: rows.y[41] = 5.0
def run(): return train(DataLoader(rows, 8, num_workers=1), change)
""",
    "what persistent workers have a copy of": """
data = TensorDataset(X.clone(), Y.clone())
def change(e):
    if e == 2: data.tensors[1].mul_(-1)
def run(): return train(DataLoader(data, 8, num_workers=1, persistent_workers=True), change)
""",
    "what workers have a copy of, within the epoch": """
data = TensorDataset(X.clone(), Y.clone())
def within(e, s):
    if (e, s) == (2, 1): data.tensors[1].mul_(-1)
def run(): return train(DataLoader(data, 8, num_workers=1), within=within)
""",
    "the size of batches, within the epoch": """
loader = DataLoader(Rows(), 4, num_workers=1)
def within(e, s):
    if (e, s) == (1, 2): loader.batch_sampler.batch_size = 6
def run(): return train(loader, within=within)
""",
    "the kind of indices": """
class Halves(Rows):
    def __getitem__(self, i): return self.x[int(i)] * 1.0, i / 2
rows = Halves()
def run():
    samplers = (range(N), range(N), torch.arange(N), np.arange(N))
    return str([[y.dtype for _, y in DataLoader(rows, 8, sampler=s)] for s in samplers])
""",
    "how warnings are shown": """
import warnings
class Meaned(Rows):
    def __getitem__(self, i):
        return self.x[i] * 1.0, np.array([np.nan_to_num(np.nanmean(np.full(3, np.nan if i == 5 else 1.0)))])
rows = Meaned()
def run():
    out = []
    for _ in range(3):
        with warnings.catch_warnings(record=True) as seen:
            out += train(DataLoader(rows, 8), epochs=1)
        out.append(len(seen))
    return out
""",
    "nothing, but the dataset is let go": """
import gc, weakref
def run():
    out = []
    for _ in range(3):
        rows = Rows()
        gone = weakref.ref(rows)
        out += train(DataLoader(rows, 8), epochs=2)
        del rows
        gc.collect()
        out.append(gone() is None)
    return out
""",
    "nothing, and the program looks at its iterator": """
rows = Rows()
def run():
    import torch.utils.data.dataloader as module
    out = []
    for _ in range(3):
        it = iter(DataLoader(rows, 8))
        next(it)
        out += [str(type(it)), isinstance(it, module._SingleProcessDataLoaderIter), type(it._dataset_fetcher).__name__]
    return out
""",
    "nothing, and the program counts its children": """
import multiprocessing
class Drawn(Rows):
    def __getitem__(self, i): return self.x[i] + torch.rand(6), self.y[i] * 1.0
loader = DataLoader(Drawn(), 8, num_workers=1)
def run(): return [[*train(loader, epochs=1), len(multiprocessing.active_children())] for _ in range(3)]
""",
    "what a listed type makes an alias of": """
class Scaled(Rows):
    def __init__(self):
        super().__init__()
        self.a = self.x.numpy()
    def __getitem__(self, i):
        x = np.float32(self.a[i])
        x *= 0.9
        return torch.from_numpy(x.copy()), self.y[i] * 1.0
rows = Scaled()
def run(): return [*train(DataLoader(rows, 8)), float(rows.a.sum())]
""",
    "how torch puts items together": """
from torch.utils.data._utils.collate import default_collate_fn_map as kinds
class Numbered(Rows):
    def __getitem__(self, i): return self.x[i] * 1.0, i
def change(epoch):
    if epoch == 2: kinds[int] = lambda batch, *, collate_fn_map=None: torch.tensor([one % 40 for one in batch])
def run(): return train(DataLoader(Numbered(), 8), change)
""",
    "torch.stack": """
stack = torch.stack
def clamped(tensors, *more, **named):
    return stack(tensors, *more, **named).clamp(max=2.0)
def change(epoch):
    if epoch == 2: torch.stack = clamped
def run(): return train(DataLoader(Rows(), 8), change)
""",
    "memory that its workers share": """
import multiprocessing
class Shared(Rows):
    def __init__(self):
        super().__init__()
        self.raw = multiprocessing.RawArray("f", X.numpy().reshape(-1).tolist())
        self.x = torch.from_numpy(np.frombuffer(self.raw, dtype=np.float32).reshape(N, 6))
    def __getitem__(self, i): return self.x[i] * 1.0, self.y[i] * 1.0
rows = Shared()
loader = DataLoader(rows, 8, num_workers=1, persistent_workers=True)
def change(epoch):
    if epoch == 2: rows.x[7] += 3
def run(): return train(loader, change)
""",
    "a file that was opened before": """
pathlib.Path("d").mkdir()
for i in range(N): np.save(f"d/{i}.npy", X[i].numpy())
held = open("d/47.npy", "r+b")
class Files(Rows):
    def __getitem__(self, i): return torch.from_numpy(np.load(f"d/{i}.npy")), self.y[i] * 1.0
def within(e, s):
    if (e, s) == (1, 2): held.seek(128); held.write(bytes(8)); held.flush()
def run(): return train(DataLoader(Files(), 4), within=within)
""",
    "a file that is mapped into memory": """
np.save("x.npy", X.numpy())
mapped = np.load("x.npy", mmap_mode="r+")
mapped[0] += 1  # its page is dirty from here on
class Read(Rows):
    def __getitem__(self, i): return torch.from_numpy(np.load("x.npy")[i]), self.y[i] * 1.0
def change(epoch):
    if epoch == 2: mapped[7] += 3
def run(): return train(DataLoader(Read(), 8), change)
""",
    "a file, by one of its size and age": """
import shutil
for name, add in (("a", 0), ("b", 1)):
    np.save(name + ".npy", X.numpy() + add)
    os.utime(name + ".npy", (1, 1))
class Read(Rows):
    def __getitem__(self, i): return torch.from_numpy(np.load("a.npy")[i]), self.y[i] * 1.0
def change(epoch):
    if epoch == 2: subprocess.run(["cp", "-p", "b.npy", "a.npy"], check=True)
def run(): return train(DataLoader(Read(), 8), change)
""",
    "settings": """
import decimal
class Rounded(Rows):
    def __getitem__(self, i):
        third = decimal.Decimal(1) / decimal.Decimal(3 + i)
        return self.x[i] * float(third), self.y[i] * len(str(self.x[i].numpy()))
def change(epoch):
    if epoch == 1: decimal.getcontext().prec = 3
    if epoch == 3: np.set_printoptions(precision=2)
def run(): return train(DataLoader(Rounded(), 8), change)
""",
    "nothing, and an item warns": """
import warnings
class Warned(Rows):
    def __init__(self):
        super().__init__()
        self.raw = [one.numpy().tobytes() for one in X]
    def __getitem__(self, i): return torch.from_numpy(np.frombuffer(self.raw[i], dtype=np.float32)), self.y[i] * 1.0
def run():
    out = []
    warnings.showwarning = lambda message, *_: out.append(str(message))
    iterator = iter(DataLoader(Warned(), 8))
    out.append("ready")
    return [*out, *train(DataLoader(Warned(), 8), epochs=2), *out]
""",
    "nothing, but the dataset is let go at once": """
import gc, weakref
def run():
    gc.disable()
    out = []
    for _ in range(9):
        rows = Rows()
        gone = weakref.ref(rows)
        out += train(DataLoader(rows, 8), epochs=1)
        del rows
        out.append(gone() is None)
    return out
""",
    "a folder that is listed for each item": """
folder = pathlib.Path("rows").absolute()
folder.mkdir()
for i in range(N):
    np.save(folder / f"{i:02d}.first.npy", X[i].numpy())

class Listed(Rows):
    def __init__(self):
        super().__init__()
        self.folder = folder
    def __getitem__(self, i):
        found = sorted(self.folder.glob(f"{i:02d}.*"))
        return torch.from_numpy(np.load(found[-1])), self.y[i] * 1.0

def change(epoch):
    if epoch == 2:
        np.save(folder / "07.second.npy", 2 * X[7].numpy())

def run():
    return train(DataLoader(Listed(), 8), change)
""",
    "a folder that is listed by its name": """
folder = os.path.abspath("rows")
os.mkdir(folder)
for i in range(N):
    np.save(f"{folder}/{i:02d}.npy", X[i].numpy())

class Listed(Rows):
    def __init__(self):
        super().__init__()
        self.folder = folder
    def __getitem__(self, i):
        return torch.from_numpy(np.load(os.path.join(self.folder, sorted(os.listdir(self.folder))[i]))), self.y[i] * 1.0

def change(epoch):
    if epoch == 2:
        np.save(f"{folder}/00a.npy", 3 * X[7].numpy())

def run():
    return train(DataLoader(Listed(), 8), change)
""",
    "a list that grows while an epoch of random order goes on": """
class Grows(Dataset):
    def __init__(self):
        self.items = [(X[i], Y[i]) for i in range(N - 4)]
    def __len__(self):
        return len(self.items)
    def __getitem__(self, i):
        x, y = self.items[i]
        return x * 1.0, y * 1.0
data, own = Grows(), torch.Generator().manual_seed(3)
shuffled = [DataLoader(data, 8, shuffle=True), DataLoader(data, 8, shuffle=True, generator=own)]
turns = iter([0, 1, 0, 1])
def within(e, s):
    if s == 2:
        data.items.append((X[len(data.items)], Y[0]))
def run(): return train(lambda: shuffled[next(turns)], within=within)
""",
    "labels of rows that come later in the epoch, of a large dataset": """
class Labelled(Rows):
    def __init__(self):
        self.x, self.y = np.random.default_rng(0).normal(size=(N, 50_000)), np.zeros(N)
    def __getitem__(self, i):
        return torch.from_numpy(self.x[i])[:6] * 1.0, float(self.y[i])
rows = Labelled()
def within(e, s):
    if e and s % 2 == 0: rows.y[8 * (s + 1):] += 1
def run(): return train(DataLoader(rows, 8), within=within)
""",
    "rows that come later in the epoch, of a large array": """
class Wide(Rows):
    def __init__(self):
        self.x = np.random.default_rng(0).normal(size=(N, 50_001)).astype("float32")
    def __getitem__(self, i):
        return torch.from_numpy(self.x[i])[:6] * 1.0, float(self.x[i, -1])
rows = Wide()
def within(e, s):
    if e == 2 and s == 1: rows.x[20:, -1] += 1
def run(): return train(DataLoader(rows, 8), within=within)
""",
    "rows of a large tensor, by its data, read through subsets": """
class Wide(Rows):
    def __init__(self):
        self.x = torch.randn(N, 50_000, generator=torch.Generator().manual_seed(1))
    def __getitem__(self, i):
        return self.x[i][:6] * 1.0, float(self.x[i, -1])
rows = Wide()
half = Subset(Subset(rows, list(range(N))[::-1]), list(range(8, 40)))
def within(e, s):
    if e == 2 and s == 1: rows.x.data[:20] += 1
def run(): return train(DataLoader(half, 8), within=within)
""",
    "rows of a list of arrays, and of tuples of tensors": """
class Lists(Dataset):
    def __init__(self):
        self.x = [np.random.default_rng(i).normal(size=3000) for i in range(N)]
        self.both = [(torch.full((2500,), float(i)), torch.tensor(i % 2.0)) for i in range(N)]
    def __len__(self): return len(self.x)
    def __getitem__(self, i):
        first, y = self.both[i]
        return torch.from_numpy(self.x[i] * 2.0).float()[:6] + first[:6] * 0.01, y * 1.0
rows = Lists()
def within(epoch, step):
    if (epoch, step) == (2, 1): rows.x[N - 1] *= 3
    if (epoch, step) == (3, 1): rows.both[N - 2][0].data += 4
def run():
    return train(DataLoader(rows, 4), within=within)
""",
    "rows that are not those of the items": """
class Elsewhere(Dataset):
    def __init__(self, read):
        self.x, self.read = np.random.default_rng(0).normal(size=(N, 6000)), read
    @property
    def first(self): return self.x
    def __len__(self): return N
    def __getitem__(self, i):
        x = self.x
        if self.read == "reversed": row = self.x[N - 1 - i]
        elif self.read == "alias": row = x[i] + x[(i + 1) % N]
        elif self.read == "mean": row = self.x[i] - self.x.mean(0)
        elif self.read == "property": row = self.first[(i * 7) % N] + self.first[i]
        elif self.read == "other": i = (i + 5) % N; row = self.x[i]
        else: row = (held := self.x)[i] * held[0]
        return torch.from_numpy(row[:6] * 1.0).float(), Y[i] * 1.0
def run():
    found = []
    for read in ("reversed", "alias", "mean", "property", "other", "walrus"):
        rows = Elsewhere(read)
        def within(epoch, step):
            if (epoch, step) == (2, 1): rows.x[:4] *= 3; rows.x[N // 2 :] += 1
        found.append(train(DataLoader(rows, 4), within=within))
    return found
""",
    "operators, built-in functions and modes": """
import builtins
class Arithmetic(Rows):
    def __getitem__(self, i):
        return (self.x[i] * 1e-39) * 1e38 * abs(-1.0), self.y[i] * 1.0
def times(one, other): return usual(one, other * 1.5) if isinstance(other, float) else usual(one, other)
usual = torch.Tensor.__mul__
def operator(): torch.Tensor.__mul__ = times
def name(): builtins.abs = lambda value: 2.0
def mode(): torch.set_flush_denormal(True)
fetchers = torch.utils.data._utils.fetch._MapDatasetFetcher
fetch = fetchers.fetch
def fetcher(): fetchers.fetch = lambda self, indices: [part * 2 for part in fetch(self, indices)]
real = abs
def run():
    found = []
    for change in (operator, name, mode, fetcher):
        def within(epoch, step):
            if (epoch, step) == (2, 1): change()
        found.append(train(DataLoader(Arithmetic(), 4), within=within))
        torch.Tensor.__mul__, builtins.abs, fetchers.fetch = usual, real, fetch
        torch.set_flush_denormal(False)
    return found
""",
    "what else tensors, arrays, images and types have": """
import abc
from PIL import Image
class Kind(abc.ABC): pass
class Plain: pass
class Named(torch.Tensor): pass
tensor, array, image, plain = torch.ones(6), np.ones(6), Image.new("L", (4, 4), 10), Plain()
named = torch.ones(6).as_subclass(Named)
named.scale, image.info["scale"] = 1.0, 1.0
class Reads(Rows):
    def __init__(self, read):
        super().__init__()
        self.read = read
    def __getitem__(self, i): return self.x[i] * self.read(), self.y[i] * 1.0
def scale(step): named.scale *= 0.9
def image_scale(step): image.info["scale"] *= 0.9
CASES = (
    (lambda: 1.0 if tensor.requires_grad else 2.0, lambda step: tensor.requires_grad_(step % 2 == 0)),
    (lambda: 1.0 if array.flags.writeable else 2.0, lambda step: array.setflags(write=step % 2 == 0)),
    (lambda: named.scale, scale),
    (lambda: image.info["scale"], image_scale),
    (lambda: 2.0 if isinstance(plain, Kind) else 1.0, lambda step: Kind.register(Plain)),
)
def run(): return [train(DataLoader(Reads(read), 4), within=lambda e, s: e and change(s)) for read, change in CASES]
""",
    "a number that a model has": """
class Tempered(nn.Linear):
    temperature = 1.0
model = Tempered(6, 1)
class Scaled(Rows):
    def __getitem__(self, i): return self.x[i] * model.temperature, self.y[i] * 1.0
def within(e, s): model.temperature *= 0.99
def run(): return train(DataLoader(Scaled(), 4), within=within)
""",
    "modes of torch that see and change operations": """
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
class Halves(TorchDispatchMode):
    seen = 0
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen += 1
        made = function(*args, **(kwargs or {}))
        return made * 0.5 if "stack" in str(function) else made
class Products(Rows):
    def __getitem__(self, i): return self.x[i] @ torch.eye(6), self.y[i] * 1.0
def run():
    with FlopCounterMode(display=False) as flops:
        found = [train(DataLoader(Products(), 4))]
    with Halves() as halves:
        found.append(train(DataLoader(TensorDataset(X.clone(), Y.clone()), 4)))
    return found, flops.get_total_flops(), halves.seen
""",
    "modes of torch that see calls, from the start of an epoch or within one": """
import collections
from torch.overrides import TorchFunctionMode
class Calls(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        seen[getattr(function, "__name__", str(function))] += 1
        return function(*args, **(kwargs or {}))
seen = collections.Counter()
def run():
    with Calls():
        found = [train(DataLoader(TensorDataset(X.clone(), Y.clone()), 4))]
        found.append(train(DataLoader(Rows(), 4, num_workers=1), epochs=1))
    loader = DataLoader(TensorDataset(X.clone(), Y.clone()), 4, shuffle=True)
    found.append(train(loader))
    batches = iter(loader)
    next(batches)
    with Calls():
        found.append(train(lambda: batches, epochs=1))
    return found, sorted(seen.items())
""",
    "kernels of torch that are replaced": """
class Squares(Rows):
    def __getitem__(self, i): return torch.relu(self.x[i]), self.y[i] * 1.0
def run():
    library = torch.library.Library("aten", "IMPL")
    def within(epoch, step):
        if (epoch, step) == (2, 1): library.impl("relu", torch.abs, "CPU")
    found = train(DataLoader(Squares(), 4), within=within)
    again = train(DataLoader(Squares(), 4))
    library._destroy()
    return found, again
""",
    "tensors that are swapped": """
rows, tensors = Rows(), TensorDataset(X.clone(), Y.clone())
def change(epoch):
    if epoch == 2:
        torch.utils.swap_tensors(rows.x, X * 3.0)
        torch.utils.swap_tensors(tensors.tensors[0], X * 3.0)
def run():
    return train(DataLoader(rows, 4), change), train(DataLoader(tensors, 4, collate_fn=lambda s: default_collate(s)), change)
""",
    "batches that are passed over": """
seen = []
def loader():
    iterator = iter(DataLoader(Rows(), 4, shuffle=True))
    seen.append((iterator._next_index(), next(iterator._sampler_iter)))
    return iterator
def run():
    return train(loader), seen
""",
    "an HDF5 file that is let go and opened for writing": """
with h5py.File("made.h5", "w") as file: file["x"] = X.numpy()
class Kept(Rows):
    def __init__(self): self.file = h5py.File("made.h5", "r")
    def __getitem__(self, i): return torch.from_numpy(self.file["x"][i]) * 1.0, Y[i] * 1.0
rows = Kept()
def change(e):
    if e:
        rows.file = None
        with h5py.File("made.h5", "a") as file: file["x"][e] = 0
        rows.file = h5py.File("made.h5", "r")
def run(): return train(DataLoader(rows, 8), change)
""",
    "a memory map that is closed": """
import mmap
X.numpy().tofile("made.bin")
class Mapped(Rows):
    def open(self):
        self.file = open("made.bin", "r+b")
        self.map = mmap.mmap(self.file.fileno(), 0)
        self.x = np.frombuffer(self.map, "float32").reshape(N, 6)
    def __init__(self): self.open()
    def __getitem__(self, i): return torch.from_numpy(self.x[i] * 1.0), Y[i] * 1.0
rows = Mapped()
def change(e):
    if e:
        del rows.x
        rows.map.close()
        rows.open()
def run(): return train(DataLoader(rows, 8), change)
""",
    "a tensor and an array that are resized in place": """
class Growing(Rows):
    def __init__(self):
        self.x, self.y = X.clone(), np.zeros((N, 1), "float32")
    def __getitem__(self, i):
        return self.x[i] * 1.0, torch.from_numpy(self.y[i] * 1.0)
rows = Growing()
def change(e):
    if e == 2:
        rows.x.resize_(N + 1, 6)
        rows.y.resize((N + 1, 1))
def run(): return train(DataLoader(rows, 8), change)
""",
    "a part that is twice in a batch, and written into": """
W = torch.randn(N, 2000, generator=torch.Generator().manual_seed(2))
class Wide(Rows):
    def __getitem__(self, i): return W[i] * 1.0
def collate(several):
    x = torch.stack(several)
    return x, x
def run():
    torch.manual_seed(0)
    net, out = nn.Linear(2000, 1), []
    for epoch in range(4):
        for x, y in DataLoader(Wide(), 8, collate_fn=collate):
            x += 0.1
            loss = (net(x) - y[:, :1]).square().mean()
            net.zero_grad(); loss.backward()
            with torch.no_grad(): net.weight -= 1e-4 * net.weight.grad
            out.append(loss.item())
    return out
""",
    "a collate function with memory of its own, in workers": """
W = torch.randn(N, 2000, generator=torch.Generator().manual_seed(2))
class Wide(Rows):
    def __getitem__(self, i): return W[i] * 1.0, Y[i] * 1.0
def collate(several):
    made = torch.empty(len(several), 2000)
    torch.stack([x for x, _ in several], out=made)
    return made, torch.stack([y for _, y in several])
def run(): return train(DataLoader(Wide(), 8, collate_fn=collate, num_workers=1))
""",
    "a collate function that goes on where something fails": """
W = torch.randn(N, 2000, generator=torch.Generator().manual_seed(2))
class Wide(Rows):
    def __getitem__(self, i): return W[i] * 1.0, Y[i] * 1.0
def collate(several):
    x, y = torch.stack([x for x, _ in several]), torch.stack([y for _, y in several])
    if len(several) > 1:
        try:
            x = x.view(len(several), 20, 100).flip(-1).flatten(1)
        except:
            pass
    return x, y
def run(): return train(DataLoader(Wide(), 8, collate_fn=collate)) + train(DataLoader(Wide(), 8, collate_fn=collate, num_workers=1))
""",
    "what tables, patterns and numbers are besides what they show": """
import re, struct
import pandas as pd
words = [f"word{number}" for number in range(60)]
frame = pd.DataFrame({"c": pd.Categorical(["u", "v"] * (N // 2)), "b": np.tile(np.array([0, 1], "i1"), N // 2)})
frame.attrs["scale"] = 1.0
series = pd.Series(np.arange(N) * 0.1, name="first")
fields = np.zeros(N, [("a", "f4"), ("b", "f4")])
fields["a"], fields["b"] = 1, 2
class Held:
    pattern, nan = re.compile("|".join(words)), float("nan")
held = Held()
class Reads(Rows):
    def __init__(self, read):
        super().__init__()
        self.read = read
    def __getitem__(self, i): return self.x[i] * (1.0 + self.read(i)), self.y[i] * 1.0
def categories(): frame["c"] = frame["c"].cat.reorder_categories(["v", "u"])
def attrs(): frame.attrs["scale"] = 3.0
def kind(): frame["b"] = frame["b"].astype(bool)
def name(): series.name = "second"
def names(): fields.dtype.names = ("b", "a")
def pattern(): held.pattern = re.compile("|".join([*words, "more"]))
def sign(): held.nan = -held.nan
CASES = (
    (lambda i: float(frame["c"].cat.codes.iloc[i]), categories), (lambda i: frame.attrs["scale"], attrs),
    (lambda i: float(str(frame["b"].dtype) == "bool"), kind), (lambda i: float(series.name == "first"), name),
    (lambda i: float(fields["a"][i]), names), (lambda i: float(held.pattern.fullmatch("more") is None), pattern),
    (lambda i: float(np.copysign(1.0, held.nan)), sign),
)
def run():
    return [train(DataLoader(Reads(read), 4), within=lambda e, s: (e, s) == (1, 2) and change()) for read, change in CASES]
""",
    "whether data is trained, how attributes are looked up, the kind of autocast": """
class Looks(Rows):
    pass
class Casts(Rows):
    def __getitem__(self, i):
        with torch.autocast("cpu"):
            return (self.x[i].reshape(1, 6) @ self.x[:6]).float().reshape(6), self.y[i] * 1.0
def trained():
    rows, found = Rows(), []
    def within(epoch, step):
        if (epoch, step) == (1, 2): rows.x.requires_grad_(True)
    found.append(train(DataLoader(rows, 4), within=within))
    found.append(rows.x.grad.tolist())
    several = TensorDataset(X.clone(), Y.clone())
    rows = Subset(several, range(N))
    found.append(train(DataLoader(rows, 4), within=lambda e, s: e == 1 and several.tensors[0].requires_grad_(True)))
    return found, several.tensors[0].grad.tolist()
def run():
    def looks(epoch, step):
        if (epoch, step) == (1, 2):
            Looks.__getattribute__ = lambda self, name: 2 * X if name == "x" else object.__getattribute__(self, name)
    def casts(epoch, step):
        if (epoch, step) == (1, 2): torch.set_autocast_dtype("cpu", torch.float16)
    found = [trained(), train(DataLoader(Looks(), 4), within=looks), train(DataLoader(Casts(), 4), within=casts)]
    torch.set_autocast_dtype("cpu", torch.bfloat16)
    return found
""",
    "what images, operations and written tables depend on besides": """
import pandas as pd
from PIL import Image
grey = Image.fromarray(np.arange(256, dtype="u1").reshape(16, 16)).copy()
colours = grey.convert("P")
colours.putpalette(list(range(256)) * 3)
frame = pd.DataFrame({"a": np.linspace(0, 1, N) / 3})
kernel = torch.randn(16, 3, 5, 5, generator=torch.Generator().manual_seed(4))
pictures = torch.randn(N, 3, 16, 16, generator=torch.Generator().manual_seed(5))
class Reads(Rows):
    def __init__(self, read):
        super().__init__()
        self.read = read
    def __getitem__(self, i): return self.x[i] * (1.0 + self.read(i)), self.y[i] * 1.0
def palette(): colours.putpalette(list(range(255, -1, -1)) * 3)
def info(): grey.info["transparency"] = 100
def precision(): pd.set_option("display.precision", 2)
def library(): torch.backends.mkldnn.enabled = False
CASES = (
    (lambda i: float(np.array(colours.convert("RGB"))[i % 16].mean()) / 255, palette),
    (lambda i: float(np.array(grey.convert("RGBA"))[:, :, 3].mean()) / 255, info),
    (lambda i: float(len(str(frame.iloc[i]))) / 50, precision),
    (lambda i: float(nn.functional.conv2d(pictures[i][None], kernel).sum()), library),
)
def run():
    out = [train(DataLoader(Reads(read), 4), within=lambda e, s: (e, s) == (1, 2) and change()) for read, change in CASES]
    torch.backends.mkldnn.enabled = True
    pd.reset_option("display.precision")
    return out
""",
    "nothing, and batches are looked at": """
clips = torch.randn(N, 2, 4, 4, 3, generator=torch.Generator().manual_seed(6))
class Clips(Rows):
    def __getitem__(self, i): return clips[i].permute(0, 3, 1, 2), self.y[i] * 1.0
def run():
    found = []
    for epoch in range(3):
        for x, y in DataLoader(Clips(), 8):
            x.detach_()
            found.append((x._is_view(), x._base is None, x.stride(), x.storage_offset(), x.untyped_storage().nbytes()))
    return found
""",
    "a new file somewhere in folders that are walked": """
top = pathlib.Path("tree").absolute()
(top / "below").mkdir(parents=True)
for number in range(3000):
    (top / f"{number}.npy").touch()
class Walks(Rows):
    def __getitem__(self, i): return self.x[i] * (1 + len(sorted(top.rglob("*.q")))), self.y[i] * 1.0
def within(epoch, step):
    if epoch and step == 2: (top / "below" / f"{epoch}.q").touch()
def run(): return train(DataLoader(Walks(), 8), within=within, epochs=3)
""",
    "nothing, and workers end where the program handles it": """
import os, signal
heard = []
def run():
    signal.signal(signal.SIGCHLD, lambda *_: heard.append("child"))
    os.register_at_fork(before=lambda: heard.append("fork"))
    return train(DataLoader(Rows(), 8, num_workers=2)), heard.count("fork"), "child" in heard
""",
    "an element that every item reads beside its own": """
class Anchored(Rows):
    def __init__(self): self.rows, self.y = list(X.clone().unbind()), Y.clone()
    def __getitem__(self, i): return self.rows[i] - self.rows[0], self.y[i] * 1.0
rows = Anchored()
def within(e, s):
    if (e, s) == (1, 2): rows.rows[0] = X[0] * 4.0
    if (e, s) == (2, 2): rows.rows[0].mul_(2.0)
def run(): return train(DataLoader(rows, 8), within=within)
""",
    "a function that a library's function calls": """
class Listed(Rows):
    def __getitem__(self, i): return torch.as_tensor(np.stack([self.x[i].numpy()] * 2))[0] * 1.0, self.y[i] * 1.0
from numpy._core import shape_base
usual = shape_base._nx.concatenate
def within(e, s):
    if (e, s) == (2, 2): shape_base._nx = Doubles()
class Doubles:
    def __getattr__(self, name):
        found = getattr(np._core.numeric, name)
        return (lambda *a, **k: usual(*a, **k) * 2) if name == "concatenate" else found
def run(): return train(DataLoader(Listed(), 8), within=within)
""",
    "how samples become a batch": """
from torch.utils.data._utils import collate
usual = collate.collate
def doubled(batch, *args, **kwargs):
    made = usual(batch, *args, **kwargs)
    return made * 2 if isinstance(made, torch.Tensor) else made
def change(e):
    collate.collate = doubled if e % 2 else usual
def run(): return train(DataLoader(Rows(), 8), change)
""",
    "how samples are shuffled": """
usual = torch.randperm
def backwards(*args, **kwargs): return usual(*args, **kwargs).flip(0)
def change(e): torch.randperm = backwards if e == 2 else usual
def run():
    found = train(DataLoader(Rows(), 8, shuffle=True), change)
    torch.randperm = usual
    return found
""",
    "the precision of products, for one backend": """
class Products(Rows):
    def __getitem__(self, i): return self.x[i] @ EYE, self.y[i] * 1.0
EYE = torch.eye(6)
def change(e):
    if e == 1 and hasattr(torch.backends.mkldnn, "matmul"): torch.backends.mkldnn.matmul.fp32_precision = "ieee"
def run(): return train(DataLoader(Products(), 8), change)
""",
    "an object that None replaces": """
class Teacher: pass
class Taught(Rows):
    def __init__(self):
        super().__init__()
        self.teacher = Teacher()
    def __getitem__(self, i): return self.x[i] * (2.0 if self.teacher is not None else 1.0), self.y[i] * 1.0
rows = Taught()
def within(e, s):
    if (e, s) == (1, 2): rows.teacher = None
def run(): return train(DataLoader(rows, 8), within=within)
""",
    "the class of an object": """
class Train: pass
class Eval: pass
class Moded(Rows):
    def __init__(self):
        super().__init__()
        self.mode = Train()
    def __getitem__(self, i): return self.x[i] * (2.0 if isinstance(self.mode, Train) else 1.0), self.y[i] * 1.0
rows = Moded()
def within(e, s):
    if (e, s) == (1, 2): rows.mode.__class__ = Eval
def run(): return train(DataLoader(rows, 8), within=within)
""",
    "the bases of a class": """
class One(Rows):
    def __getitem__(self, i): return self.x[i] * 1.0, self.y[i] * 1.0
class Two(Rows):
    def __getitem__(self, i): return self.x[i] * 2.0, self.y[i] * 1.0
class Either(One): pass
def within(e, s):
    if (e, s) == (1, 2): Either.__bases__ = (Two,)
def run(): return train(DataLoader(Either(), 8), within=within)
""",
    "a default of a function that bears a library's name": """
@functools.wraps(torch.nn.functional.normalize)
def normalize(x, scale=2.0): return x * scale
class Normal(Rows):
    def __getitem__(self, i): return normalize(self.x[i]), self.y[i] * 1.0
def within(e, s):
    if (e, s) == (1, 2): normalize.__defaults__ = (1.0,)
def run(): return train(DataLoader(Normal(), 8), within=within)
""",
    "the form of arrays in a list": """
class Formed(Rows):
    def __init__(self): self.rows = [np.arange(1024.0) * i for i in range(N)]
    def __getitem__(self, i): return torch.from_numpy(self.rows[i] * 1).float(), torch.ones(1)
rows, shapes = Formed(), []
def loader():
    for batch in DataLoader(rows, 8):
        shapes.append(tuple(batch[0].shape))
        yield batch
def within(e, s):
    if (e, s) == (1, 2):
        for row in rows.rows: row.shape = (2, 512)
def run(): return train(loader, within=within), shapes
""",
    "an array of a list that every item reads": """
class Anchored(Rows):
    def __init__(self):
        self.rows = [torch.full((1024,), float(i)) for i in range(N)]
        self.anchor = self.rows[0]
    def __getitem__(self, i): return self.rows[i] - self.anchor, torch.ones(1)
rows = Anchored()
def within(e, s):
    if (e, s) in ((1, 2), (2, 3)): rows.anchor.add_(1)
def run(): return train(DataLoader(rows, 8), within=within)
""",
    "a file in shared memory": """
import atexit, shutil, tempfile
root = tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
atexit.register(shutil.rmtree, root)
json.dump(N, open(root + "/meta.json", "w"))
for i in range(N): np.save(root + f"/{i:03d}.npy", X[i].numpy())
class Shared(Rows):
    def __init__(self): self.pattern, self.meta = root + "/%03d.npy", root + "/meta.json"
    def __len__(self): return json.load(open(self.meta))
    def __getitem__(self, i): return torch.from_numpy(np.load(self.pattern % i)), torch.ones(1)
def within(e, s):
    if e and s == 3: np.save(root + "/040.npy", X[40].numpy() * e * 4)
def run(): return train(DataLoader(Shared(), 8), within=within)
""",
    "a file that compiled code opens by a computed name": """
json.dump(N, open("meta.json", "w"))
def write(part, scale):
    with h5py.File(f"part{part}.h5", "w") as file: file["x"] = X[part * 12:part * 12 + 12].numpy() * scale
for part in range(4): write(part, 1)
class Parts(Rows):
    def __init__(self): self.meta = "meta.json"
    def __len__(self): return json.load(open(self.meta))
    def __getitem__(self, i):
        with h5py.File(f"part{i // 12}.h5", "r") as file: return torch.from_numpy(file["x"][i % 12]), torch.ones(1)
def within(e, s):
    if e and s == 2: write(3, 10 * e)
def run(): return train(DataLoader(Parts(), 8), within=within)
""",
    "a file that the program puts where one is opened": """
for name, scale in (("a.h5", 1), ("b.h5", 5)):
    with h5py.File(name, "w") as file: file["x"] = X.numpy() * scale
class Opened(Rows):
    def __init__(self): self.path, self.file = "a.h5", None
    def __getitem__(self, i):
        if self.file is None: self.file = h5py.File(self.path, "r")
        return torch.from_numpy(self.file["x"][i]), torch.ones(1)
rows = Opened()
def change(e):
    if e == 2: rows.file = h5py.File("b.h5", "r")
def run(): return train(DataLoader(rows, 8, num_workers=1), change)
""",
    "nothing, and a batch holds one tensor twice": """
wide = torch.randn(N, 2048, generator=torch.Generator().manual_seed(2))
class Boxes(Rows):
    def __getitem__(self, i):
        box = X[i] * 2
        return wide[i] * 1.0, box, box
def collate(several): return torch.stack([a for a, _, _ in several]), [b for _, b, _ in several], [c for _, _, c in several]
def loader():
    for images, boxes, same in DataLoader(Boxes(), 8, collate_fn=collate):
        for box in boxes: box /= 100
        yield images, torch.stack(same)
def run(): return train(loader)
""",
    "nothing, and a batch holds views": """
wide = torch.randn(N, 2048, generator=torch.Generator().manual_seed(2))
class Views(Rows):
    def __getitem__(self, i): return wide[i] * 1.0, torch.full((3, 5), float(i))[:, :4]
def collate(several): return torch.stack([a for a, _ in several]), [b for _, b in several]
def run(): return [[(b.stride(), b.is_contiguous()) for b in boxes] for _, boxes in DataLoader(Views(), 8, collate_fn=collate)]
""",
    "whether warnings are errors": """
import random, warnings
class Logs(Rows):
    def __init__(self):
        super().__init__()
        self.a = self.x.numpy() ** 2
        self.a[17] = 0
    def __getitem__(self, i):
        a = self.a[i]
        for _ in range(40): a = np.sort(a * 1.0)
        return torch.from_numpy(np.maximum(np.log(self.a[i]), -1)), self.y[i] * 1.0
def change(e):
    if e == 2: warnings.simplefilter("error")
def run():
    try: return train(DataLoader(Logs(), 8), change)
    except RuntimeWarning as warning: return str(warning)
""",
    "a module that items import": """
import sys, types
def made(scale):
    module = types.ModuleType("augment")
    module.scaled = (lambda x: x * 2.0) if scale == 2 else (lambda x: x * 1.0)
    return module
sys.modules["augment"] = made(2)
class Imports(Rows):
    def __getitem__(self, i):
        from augment import scaled
        return scaled(self.x[i]), self.y[i] * 1.0
def within(e, s):
    if (e, s) == (1, 2): sys.modules["augment"] = made(1)
def run(): return train(DataLoader(Imports(), 8), within=within)
""",
    "nothing, and the first sample of a batch decides its dtype": """
class Mixed(Rows):
    def __getitem__(self, i):
        a = X[i]
        for _ in range(20): a = torch.sort(-a)[0]
        return X[i] * 1.0, 0 if i in (13, 27, 30, 41) else 0.5
class Phased(Sampler):
    def __init__(self): self.epoch = -1
    def __len__(self): return N
    def __iter__(self):
        self.epoch += 1
        return iter(range(N)) if not self.epoch else iter(torch.randperm(N).tolist())
def run():
    loader = DataLoader(Mixed(), 8, sampler=Phased(), num_workers=2)
    torch.manual_seed(0)
    return [str(y.dtype) for _ in range(5) for _, y in loader]
""",
    "one of many files, which compiled code writes": """
os.mkdir("features")
MANY = 400
for i in range(MANY): torch.save(X[i % N], f"features/{i:03d}.pt")
class Saved(Rows):
    def __init__(self): self.root = "features"
    def __len__(self): return MANY
    def __getitem__(self, i): return torch.load(os.path.join(self.root, f"{i:03d}.pt")), torch.ones(1)
def within(e, s):
    if e and s == 20: torch.save(X[3] * 50 * e, "features/171.pt")
def run(): return train(DataLoader(Saved(), 8), within=within, epochs=3)
""",
    "the size of arrays in a list": """
class Grown(Rows):
    def __init__(self): self.rows = [np.ones(32, "f4") * i for i in range(N)]
    def __getitem__(self, i): return torch.from_numpy(self.rows[i][-6:] * 1), torch.ones(1)
rows = Grown()
def change(e):
    if e == 2:
        for at in range(N): rows.rows[at].resize(64)
def run(): return train(DataLoader(rows, 8), change)
""",
    "an item of a subset that counts from the end": """
class Listed(Rows):
    def __init__(self): self.rows = [torch.ones(500) * i for i in range(N)]
    def __getitem__(self, i): return self.rows[i][:6] * 1.0, torch.ones(1)
rows = Listed()
def within(e, s):
    if (e, s) == (1, 2): rows.rows[-2].mul_(3.0)
def run(): return train(DataLoader(Subset(rows, range(-40, 0)), 8), within=within)
""",
    "records of a list, by other kinds of records": """
items = [(X[i], Y[i]) for i in range(N)]
def within(e, s):
    if (e, s) == (1, 2): items[30] = [X[30] * 5, Y[30]]
    if (e, s) == (2, 2): items[40] = [X[40] * 9, Y[40]]
def run(): return train(DataLoader(items, 8), within=within)
""",
    "nothing, and the program profiles some of its steps": """
def run():
    found, loader = [], DataLoader(Rows(), 4, shuffle=True, generator=torch.Generator().manual_seed(3))
    train(loader)
    ready = lambda profile: found.append(sorted((one.key, one.count) for one in profile.key_averages()))
    schedule = torch.profiler.schedule(wait=3, warmup=1, active=4, repeat=2)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], schedule=schedule, on_trace_ready=ready) as own:
        train(loader, within=lambda epoch, step: own.step())
    return found
""",
}  # fmt: skip


@pytest.mark.parametrize("what", PROGRAMS)
def test_every_change_is_seen(what, tmp_path):
    recipe = SimpleNamespace(source=lambda: HEAD + PROGRAMS[what])
    plain, _ = ran(recipe, tmp_path / "plain", None)
    ours, _ = ran(recipe, tmp_path / "exact", "exact")
    assert "Error" not in plain, plain
    assert ours == plain


def test_the_tested_programs_do_keep_their_data(tmp_path):
    """Otherwise the programs above would prove nothing."""
    count = 0
    for number, what in enumerate(
        (
            *("a class", "a list of samples", "a name that a class has inherited", "where a link leads"),
            *("a folder that is listed for each item", "a folder that is listed by its name"),
            "an item of a subset that counts from the end",
        )
    ):
        recipe = SimpleNamespace(source=lambda what=what: HEAD + PROGRAMS[what])
        _, applied = ran(recipe, tmp_path / str(number), "exact")
        count += "resident-data" in applied
    assert count == 7
