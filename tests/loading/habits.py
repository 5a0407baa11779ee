"""Training programs built from pieces: what a dataset holds, what else its code does, and what the loop changes.

Every piece is a habit of real programs, and any of them may meet any other.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

HEAD = """
import collections, functools, itertools, os, random, threading, types, warnings
from dataclasses import dataclass, field
import numpy as np
import torch
from torch import nn
from torch.utils.data import *

N = 48
_g = torch.Generator().manual_seed(1)
X = torch.randn(N, 6, generator=_g)
Y = (X.sum(1, keepdim=True) > 0).float()
OUT = []
COUNT = collections.Counter()
SEEN = []
SCALE = 1.0
RNG = random.Random(5)
NPRNG = np.random.default_rng(6)
GEN = torch.Generator().manual_seed(7)
TICK = itertools.count()
VOCAB = collections.defaultdict(lambda: len(VOCAB))
FACTOR = {"k": 1.0}


def helper(x, k=1.0):
    return x * k


def counted(f):
    calls = [0]
    @functools.wraps(f)
    def inner(*a, **k):
        calls[0] += 1
        return f(*a, **k) + 0.01 * (calls[0] % 7)
    return inner


def plainly(f):
    @functools.wraps(f)
    def inner(*a, **k):
        return f(*a, **k)
    return inner


def closure():
    k = 1.0
    def get():
        return k
    def set_(v):
        nonlocal k
        k = v
    return get, set_


GET, SET = closure()


class Config:
    __slots__ = ("k", "inner")
    def __init__(self): self.k, self.inner = 1.0, types.SimpleNamespace(k=1.0)


class Scale:
    def __init__(self, k=1.0): self.k = k
    def __call__(self, x): return x * self.k


class Compose:
    def __init__(self, steps): self.steps = steps
    def __call__(self, x):
        for step in self.steps: x = step(x)
        return x
"""

# name: (lines of __init__, expression of the raw row)
HELD = {
    "tensor": ("self.x = X.clone()", "self.x[i]"),
    "array": ("self.x = X.numpy().copy()", "torch.from_numpy(self.x[i])"),
    "array copied": ("self.x = X.numpy().copy()", "torch.tensor(self.x[i])"),
    "list of tensors": ("self.x = [row.clone() for row in X]", "self.x[i]"),
    "list of lists": ("self.x = X.tolist()", "torch.tensor(self.x[i])"),
    "list of pairs": ("self.x = [(row.clone(), n) for n, row in enumerate(X)]", "self.x[i][0]"),
    "dict of arrays": ("self.x = {n: row.numpy().copy() for n, row in enumerate(X)}", "torch.tensor(self.x[i])"),
    "deque": ("self.x = collections.deque(row.clone() for row in X)", "self.x[i]"),
    "object array": (
        "self.x = np.empty(N, dtype=object)\n        for n in range(N): self.x[n] = X[n].clone()",
        "self.x[i]",
    ),
    "view of an array": ("self.base = X.numpy().copy(); self.x = torch.from_numpy(self.base)", "self.x[i]"),
    "bytes": (
        "self.x = X.numpy().tobytes()",
        "torch.tensor(np.frombuffer(self.x, dtype=np.float32)[i * 6 : i * 6 + 6])",
    ),
    "config": ("self.c = Config(); self.c.inner.x = X.clone(); self.x = self.c.inner.x", "self.c.inner.x[i]"),
    "class member": ("type(self).x = X.clone()", "self.x[i]"),
    "global": ("self.x = X", "X[i]"),
    "files": (
        "self.x = X; os.makedirs('rows', exist_ok=True)\n"
        "        for n in range(N): np.save(f'rows/{n}.npy', X[n].numpy())\n        self.folder = 'rows'",
        "torch.from_numpy(np.load(f'{self.folder}/{i}.npy'))",
    ),
    "memory map": (
        "X.numpy().tofile('all.bin'); self.file = 'all.bin'\n"
        "        self.x = np.memmap(self.file, dtype=np.float32, mode='r+', shape=(N, 6))",
        "torch.tensor(np.asarray(self.x[i]))",
    ),
}

# What else the code of an item does with x; {} is x
PURE = {
    "nothing": "",
    "scaled by an attribute": "x = x * self.k",
    "scaled by a global": "x = x * SCALE",
    "scaled by a dictionary": "x = x * FACTOR['k']",
    "scaled by a closure": "x = x * GET()",
    "scaled by a class member": "x = x * type(self).member",
    "scaled by a slot": "x = x * self.cfg.k",
    "scaled by a nested slot": "x = x * self.cfg.inner.k",
    "a helper": "x = helper(x, self.k)",
    "a transform": "x = self.tf(x)",
    "a property": "x = x * self.factor",
    "a partial": "x = functools.partial(helper, k=self.k)(x)",
    "a loop": "y = x.clone()\n        for j in range(3): y[j] += j\n        x = y",
    "a list": "parts = []\n        for v in x: parts.append(v * 2)\n        x = torch.stack(parts)",
    "numpy arithmetic": "x = torch.from_numpy(np.clip(x.numpy() * 2 - 1, -2, 2))",
    "a condition": "x = -x if i % 5 == 0 else x",
    "a default argument": "x = x + (lambda v, k=0.5: v * k)(x)",
}
IMPURE = {
    "draws from torch": "x = x + 0.1 * torch.randn(6)",
    "draws from numpy": "x = x * float(np.random.rand())",
    "draws from random": "x = x * random.random()",
    "draws rarely": "x = x + torch.rand(6) if i % 17 == 3 else x",
    "a generator of its own": "x = x + torch.randn(6, generator=GEN)",
    "a Random of its own, rarely": "x = x * RNG.random() if i % 11 == 4 else x",
    "a numpy Generator": "x = x * float(NPRNG.random())",
    "a bit generator": "x = x + 1e-3 * float(NPRNG.bit_generator.random_raw() % 7)",
    "counts": "self.n += 1; x = x + 0.001 * self.n",
    "counts in a global": "COUNT[i % 3] += 1",
    "counts rarely": "self.n += (i % 13 == 5)",
    "remembers rarely": "SEEN.append(i) if i % 19 == 7 else None",
    "prints rarely": "print('odd item', i) if i % 23 == 9 else None",
    "an iterator": "x = x + 0.001 * next(TICK)",
    "a growing vocabulary": "x = x + 0.01 * VOCAB[i % 29]",
    "writes into its row": "x += 0.001",
    "writes into its row rarely": "x.mul_(1.01) if i % 9 == 2 else None",
    "writes by data": "self.k_t.data += 0.001; x = x * self.k_t",
    "writes through an array": "self.a[i % 4] += 0.01; x = x + torch.from_numpy(self.a)[i % 4]",
    "a cache of its own": "x = self.cached(i, x)",
    "sets an attribute": "self.last = i",
    "warns": "warnings.warn(f'odd {i % 3}')",
    "fails once": "self.fail(i)",
    "an accumulator": "self.total = self.total + x; x = x + 1e-3 * self.total",
    "setattr": "setattr(self, 'n', self.n + 1); x = x + 1e-3 * self.n",
    "its dictionary": "self.__dict__['n'] += 1; x = x + 1e-3 * self.__dict__['n']",
    "a worker": "w = get_worker_info(); x = x * (1.5 if w is not None else 1.0)",
    "a process": "x = x * (1.0 + 0.1 * (threading.current_thread().name != 'MainThread'))",
    "the environment": "x = x * float(os.environ.get('HL_K', '1'))",
    "a shuffle": "random.shuffle(self.order)",
    "a nested function that counts": "x = self.counter(x)",
}

# What the loop does after each step; `ds` is the dataset itself, `loader` its loader
CHANGED = {
    "nothing": "",
    "an attribute": "ds.k = 1 + step * 0.01",
    "a global": "global SCALE; SCALE = 1 + step * 0.01",
    "a dictionary": "FACTOR['k'] = 1 + step * 0.01",
    "a closure": "SET(1 + step * 0.01)",
    "a class member": "type(ds).member = 1 + step * 0.01",
    "a slot": "ds.cfg.k = 1 + step * 0.01",
    "a nested slot": "ds.cfg.inner.k = 1 + step * 0.01",
    "a transform deep inside": "ds.tf.steps[0].steps[0].k = 1 + step * 0.01",
    "a transform replaced": "ds.tf = Compose([Compose([Scale(1 + step * 0.01)])])",
    "a list of transforms": "ds.tf.steps.append(Scale(1.01))",
    "what a property reads": "ds._factor = 1 + step * 0.01",
    "a tensor in place": "X.mul_(1.001)",
    "a tensor by data": "X.data.mul_(1.001)",
    "a tensor through numpy": "X.numpy()[step % N] += 0.01",
    "what it holds": "change(ds, step)",
    "what it holds, once": "change(ds, step) if step == 9 else None",
    "another method": "type(ds).extra = (lambda self, x: x * (1 + step * 0.01))",
    "torch's default dtype": "torch.set_default_dtype(torch.float64) if step == 13 else torch.set_default_dtype(torch.float32)",
    "a draw": "torch.rand(1); random.random()",
}
CHANGE = """
def change(ds, step):
    x, n = ds.x, step % N
    if isinstance(x, torch.Tensor): x[n] += 0.01
    elif isinstance(x, np.ndarray) and x.dtype != object: x[n] += 0.01
    elif isinstance(x, np.ndarray): x[n] = x[n] + 0.01
    elif isinstance(x, dict): x[n] = x[n] + np.float32(0.01)
    elif isinstance(x, bytes): ds.x = (np.frombuffer(x, dtype=np.float32) * np.float32(1.001)).tobytes()
    elif isinstance(x, collections.deque): x.append(x[0] * 1.01); x.popleft()
    elif isinstance(x[0], list): x[n][0] += 0.01
    elif isinstance(x[0], tuple): x[n] = (x[n][0] + 0.01, n)
    else: x[n] = x[n] + 0.01
"""

LOADERS = {
    "plain": "DataLoader(seen, batch_size=8, shuffle=True)",
    "in order": "DataLoader(seen, batch_size=7)",
    "last dropped": "DataLoader(seen, batch_size=10, shuffle=True, drop_last=True)",
    "generator": "DataLoader(seen, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(3))",
    "subset sampler": "DataLoader(seen, batch_size=8, sampler=SubsetRandomSampler(list(range(0, len(seen), 2))))",
    "weights": "DataLoader(seen, batch_size=8, sampler=WeightedRandomSampler(torch.rand(len(seen)), 40))",
    "replacement": "DataLoader(seen, batch_size=8, sampler=RandomSampler(seen, replacement=True, num_samples=40))",
    "endless": "DataLoader(seen, batch_size=8, sampler=RandomSampler(seen, replacement=True, num_samples=10**9))",
    "own sampler": "DataLoader(seen, batch_size=8, sampler=Own(len(seen)))",
    "own batches": "DataLoader(seen, batch_sampler=OwnBatches(len(seen)))",
    "own collate": "DataLoader(seen, batch_size=8, shuffle=True, collate_fn=collate)",
    "collate that counts": "DataLoader(seen, batch_size=8, shuffle=True, collate_fn=counting_collate)",
    "collate that sorts": "DataLoader(seen, batch_size=8, shuffle=True, collate_fn=sorting_collate)",
    "batch size grows": "DataLoader(seen, batch_size=4, shuffle=True)",
    "indices change": "DataLoader(seen, batch_size=8, sampler=SubsetRandomSampler(list(range(30))))",
    "no batches": "DataLoader(seen, batch_size=None, shuffle=True)",
    "one worker": "DataLoader(seen, batch_size=16, shuffle=True, num_workers=1)",
    "two workers": "DataLoader(seen, batch_size=16, shuffle=True, num_workers=2)",
    "persistent worker": "DataLoader(seen, batch_size=16, shuffle=True, num_workers=1, persistent_workers=True)",
}
SAMPLERS = """
class Own(Sampler):
    def __init__(self, n): self.n = n
    def __len__(self): return self.n
    def __iter__(self):
        for j in range(self.n): yield (j * 7 + random.randrange(3)) % self.n


class OwnBatches:
    def __init__(self, n): self.n, self.size = n, 4
    def __len__(self): return 6
    def __iter__(self):
        for j in range(6):
            self.size = 4 + j
            yield [int(v) for v in torch.randint(0, self.n, (self.size,))]


def collate(samples):
    return torch.stack([s[0] for s in samples]), torch.stack([s[1] for s in samples])


def counting_collate(samples):
    COUNT["batches"] += 1
    return torch.stack([s[0] for s in samples]) * (1 + 0.01 * COUNT["batches"]), torch.stack([s[1] for s in samples])


def sorting_collate(samples):
    samples = sorted(samples, key=lambda s: float(s[0].sum()))
    return torch.stack([s[0] for s in samples]), torch.stack([s[1] for s in samples])
"""
EACH_STEP = {
    "batch size grows": "loader.batch_sampler.batch_size = min(16, loader.batch_sampler.batch_size + 1)",
    "indices change": "loader.sampler.indices[step % 30] = (step * 5) % N",
}

WRAPPED = {
    "itself": "ds",
    "a subset": "Subset(ds, list(range(0, N, 2)) + [1, 3])",
    "two": "ConcatDataset([ds, Subset(ds, range(10))])",
    "a wrapper": "Wrapper(ds)",
    "a wrapper that delegates": "Delegating(ds)",
    "a split": "random_split(ds, [30, 18], generator=torch.Generator().manual_seed(2))[0]",
}
WRAPPERS = """
class Wrapper(Dataset):
    def __init__(self, inner): self.inner = inner
    def __len__(self): return len(self.inner)
    def __getitem__(self, i):
        x, y = self.inner[i]
        return x * 0.5, y


class Delegating(Dataset):
    def __init__(self, inner): self.__dict__["inner"] = inner
    def __getattr__(self, name): return getattr(self.__dict__["inner"], name)
    def __len__(self): return len(self.inner)
    def __getitem__(self, i): return self.inner[i]
"""
DECORATED = {"none": "", "plainly": "@plainly", "counted": "@counted_item"}

LOOPS = {
    "epochs": "for epoch in range(3):\n        for step_in, (x, y) in enumerate(loader):\n            train(x, y)\n            if step_in >= 9: break",
    "broken off": "for epoch in range(4):\n        for step_in, (x, y) in enumerate(loader):\n            train(x, y)\n            if step_in == 2: break",
    "with evaluation": (
        "other = DataLoader(seen, batch_size=12)\n    for epoch in range(3):\n"
        "        for step_in, (x, y) in enumerate(loader):\n            train(x, y)\n            if step_in >= 9: break\n"
        "        with torch.no_grad(): OUT.append([float(model(x).sum()) for x, y in other])"
    ),
    "loaders made anew": (
        "for epoch in range(4):\n        for step_in, (x, y) in enumerate(make_loader()):\n            train(x, y)\n"
        "            if step_in >= 7: break"
    ),
    "batches written into": (
        "for epoch in range(3):\n        for step_in, (x, y) in enumerate(loader):\n            x += 0.01; y *= 0.9\n"
        "            train(x, y)\n            if step_in >= 9: break"
    ),
    "errors met": (
        "for epoch in range(3):\n        batches, tries = iter(loader), 0\n        while tries < 9:\n            tries += 1\n"
        "            try: x, y = next(batches)\n            except StopIteration: break\n"
        "            except OSError as error: OUT.append(str(error)); continue\n            train(x, y)"
    ),
}

PROGRAM = """
class Data(Dataset):
    member = 1.0
    def __init__(self):
        {init}
        self.y, self.k, self._factor, self.n, self.last = Y.clone(), 1.0, 1.0, 0, 0
        self.cfg, self.tf = Config(), Compose([Compose([Scale()])])
        self.k_t, self.a, self.store, self.failed = torch.ones(6), np.zeros(4, dtype=np.float32), dict(), set()
        self.total, self.order, self.count_cell = torch.zeros(6), list(range(5)), [0]
    def __len__(self): return N
    @property
    def factor(self): return self._factor
    def extra(self, x): return x
    def cached(self, i, x):
        if i not in self.store: self.store[i] = x * (1 + 0.001 * len(self.store))
        return self.store[i]
    def fail(self, i):
        if i % 21 == 6 and i not in self.failed:
            self.failed.add(i)
            raise OSError(f"cannot read {{i}}")
    def counter(self, x):
        def inner():
            self.count_cell[0] += 1
            return x * (1 + 0.001 * self.count_cell[0])
        return inner()
    {decorator}
    def __getitem__(self, i):
        i = int(i)
        x = {row}
        {work}
        x = self.extra(x)
        return x, self.y[i]


def run():
    global SCALE
    torch.manual_seed(0); random.seed(0); np.random.seed(0)
    ds = Data()
    seen = {wrapped}
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    def make_loader(): return {loader}
    loader, step = make_loader(), 0
    def train(x, y):
        nonlocal step
        global SCALE
        optimizer.zero_grad()
        loss = ((model(x.float()) - y.float()) ** 2).mean()
        loss.backward()
        optimizer.step()
        step += 1
        OUT.append((loss.item(), tuple(x.shape), str(x.dtype), x.requires_grad))
        {changed}
        {each_step}
    {loop}
    torch.set_default_dtype(torch.float32)
    OUT.append([p.tolist() for p in model.parameters()])
    OUT.append([torch.rand(1).item(), random.random(), float(np.random.rand()), RNG.random(), GEN.get_state().sum().item()])
    OUT.append([ds.n, ds.last, dict(COUNT), list(SEEN), len(VOCAB), sorted(ds.store), sorted(ds.failed), ds.order])
    OUT.append([float(ds.k_t.sum()), float(ds.a.sum()), float(ds.total.sum()), float(X.sum()), float(NPRNG.random())])
    return OUT
"""


@dataclass(frozen=True)
class Recipe:
    held: str
    work: str
    changed: str
    loader: str
    wrapped: str
    loop: str
    decorator: str = "none"

    def source(self) -> str:
        init, row = HELD[self.held]
        work = {**PURE, **IMPURE}[self.work]
        decorator = {"none": "", "plainly": "@plainly", "counted": "@counted_pair"}[self.decorator]
        text = PROGRAM.format(
            init=init,
            row=row,
            work=work or "pass",
            decorator=decorator or "# plain",
            wrapped=WRAPPED[self.wrapped],
            loader=LOADERS[self.loader],
            changed=CHANGED[self.changed].replace("global SCALE; ", "") or "pass",
            each_step=EACH_STEP.get(self.loader, "pass"),
            loop=LOOPS[self.loop],
        )
        counted = (
            "\ndef counted_pair(f):\n    calls = [0]\n    @functools.wraps(f)\n    def inner(self, i):\n"
            "        calls[0] += 1\n        x, y = f(self, i)\n        return x * (1 + 0.01 * (calls[0] % 5)), y\n"
            "    return inner\n"
        )
        return HEAD + CHANGE + SAMPLERS + WRAPPERS + counted + text


def recipes(seed: int, count: int) -> list[Recipe]:
    """Returns recipes in which every piece occurs with many others."""
    draw = random.Random(seed)
    pure = [habit for habit in PURE for _ in range(2)]
    found = []
    for _ in range(count):
        found.append(
            Recipe(
                held=draw.choice(list(HELD)),
                work=draw.choice(pure + list(IMPURE)),
                changed=draw.choice(["nothing"] * 6 + list(CHANGED)),
                loader=draw.choice(list(LOADERS)[:16] * 2 + list(LOADERS)),
                wrapped=draw.choice(["itself"] * 4 + list(WRAPPED)),
                loop=draw.choice(["epochs"] * 2 + list(LOOPS)),
                decorator=draw.choice(["none"] * 8 + ["plainly", "counted"]),
            )
        )
    return found
