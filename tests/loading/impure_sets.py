"""Datasets whose fetching is not pure, each with words from the reason that the reader gives.

Every class is one habit, and the tests assert that none is called pure.
"""

from __future__ import annotations

import collections
import contextvars
import decimal
import functools
import itertools
import json
import logging
import operator
import os
import random
import re
import secrets
import threading
import time
import uuid
import warnings
from datetime import datetime, timedelta, tzinfo
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset, get_worker_info

CASES: dict[str, tuple[str, object]] = {}
RNG = np.random.default_rng(0)
COUNT = collections.Counter()
LOCAL = threading.local()
CONTEXT = contextvars.ContextVar("scale", default=1.0)
LOG = logging.getLogger("items")
TICKS = itertools.count()
CACHE: dict[int, torch.Tensor] = {}
TOTAL = 0


def impure(words, **held):
    """Registers a class together with what its instances hold."""

    def register(kind):
        CASES[kind.__name__] = words, kind(**held)
        return kind

    return register


class Base(Dataset):
    def __init__(self, **held):
        self.x, self.a, self.n = torch.randn(50, 8), np.random.randn(50, 8), 0
        self.lists = [[1.0], [2.0]]
        self.__dict__.update(held)

    def __len__(self):
        return 50


def bump():
    global TOTAL
    TOTAL += 1
    return TOTAL


# Objects of the program whose methods bear the names of pure ones


class Reading(float):
    def item(self):
        return bump()


class Sensor:
    def item(self):
        return bump()

    def get(self, key):
        return bump()

    def read(self):
        return bump()

    def __call__(self, x):
        return x * bump()


class Row(NamedTuple):
    value: float

    def item(self):
        return bump()


class Pair(NamedTuple):
    first: object
    second: object


class Kind(Enum):
    ONE = 1

    def item(self):
        return bump()


class OwnPath(type(Path())):
    def read_bytes(self):
        bump()
        return b""


class Growing(dict):
    def __missing__(self, key):
        self[key] = len(self)
        return self[key]


class Loud:
    def __getattr__(self, name):
        bump()
        return 1.0


class Descriptor:
    def __get__(self, owner, kind):
        return bump()


class Setting:
    def __get__(self, owner, kind):
        return 1.0

    def __set__(self, owner, value):
        bump()


class OwnProperty(property):
    def __get__(self, owner, kind=None):
        return bump()


class Meta(type):
    @property
    def tick(cls):
        return bump()


class Third:
    @property
    def factor(self):
        return random.random()


class Second:
    third = Third()

    @property
    def factor(self):
        return self.third.factor


class Slotted:
    __slots__ = ("n",)

    def __init__(self):
        self.n = 0

    def step(self):
        self.n += 1
        return self.n


class Odd(Exception):
    def __init__(self):
        bump()


class Bag:
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return bump()

    @property
    def tick(self):
        return bump()

    @property
    def written(self):
        return 1

    @written.setter
    def written(self, value):
        bump()


class Flag:
    def __init__(self):
        self.on = False


class Unequal:
    def __contains__(self, key):
        return bump() > 3

    def __lt__(self, other):
        return bump() > 3


class Key:
    def __hash__(self):
        return bump()


class Empty(dict):
    pass


class Encoder(json.JSONEncoder):
    def encode(self, value):
        bump()
        return ""


def put(target, value):
    target.append(value)


def second_of(first, second):
    second.append(first)
    return first


def counted(f):
    calls = [0]

    @functools.wraps(f)
    def inner(*args):
        calls[0] += 1
        return f(*args)

    return inner


def counter():
    calls = 0

    def step():
        nonlocal calls
        calls += 1
        return calls

    return step


def of_flag(flag):
    if flag.on:
        bump()


# Random numbers


@impure("draws from a generator of its own")
class NumpyGenerator(Base):
    def __getitem__(self, i):
        return self.x[i] + RNG.normal()


@impure("draws random numbers")
class NumpyStream(Base):
    def __getitem__(self, i):
        return self.x[i] + np.random.rand()


@impure("draws random numbers")
class TorchStream(Base):
    def __getitem__(self, i):
        return self.x[i] + torch.rand(8)


@impure("draws random numbers")
class PythonStream(Base):
    def __getitem__(self, i):
        return self.x[random.randrange(50)]


@impure("draws random numbers with .uniform_()")
class InPlaceDraw(Base):
    def __getitem__(self, i):
        return self.x[i] + torch.empty(8).uniform_()


@impure("draws random numbers")
class FunctionalDropout(Base):
    def __getitem__(self, i):
        return F.dropout(self.x[i], 0.1)


@impure("", net=nn.Dropout(0.5))
class DropoutLayer(Base):
    def __getitem__(self, i):
        return self.net(self.x[i])


@impure("runs a model", net=nn.Linear(8, 8))
class Model(Base):
    def __getitem__(self, i):
        return self.net(self.x[i])


@impure("", gen=torch.Generator())
class TorchGenerator(Base):
    def __getitem__(self, i):
        return self.x[torch.randperm(50, generator=self.gen)[i]]


@impure("", bits=np.random.PCG64(3))
class BitGenerator(Base):
    def __getitem__(self, i):
        return self.x[i] * (self.bits.random_raw() % 3)


@impure("draws random numbers")
class ShuffledRows(Base):
    def __getitem__(self, i):
        np.random.shuffle(self.a)
        return self.x[i]


@impure("")
class Secrets(Base):
    def __getitem__(self, i):
        return self.x[secrets.randbelow(50)]


@impure("")
class Uuid(Base):
    def __getitem__(self, i):
        return uuid.uuid4().int % 7


@impure("draws random numbers", second=Second())
class ThreeClassesDeep(Base):
    def __getitem__(self, i):
        return self.x[i] * self.second.factor


@impure(".sample()", df=pd.DataFrame({"a": [1, 2]}))
class SampledTable(Base):
    def __getitem__(self, i):
        return self.df.sample(1).iloc[0]["a"]


@impure("", fs=[abs, lambda v: v + random.random()])
class FunctionsInAList(Base):
    def __getitem__(self, i):
        return [f(self.x[i]) for f in self.fs][0]


@impure("draws random numbers", tf=functools.partial(lambda k, v: v * k * random.random(), 2))
class Partial(Base):
    def __getitem__(self, i):
        return self.tf(self.x[i])


# Clocks, logs, identity, environment


@impure("reads the clock")
class Clock(Base):
    def __getitem__(self, i):
        return self.x[i] * time.time()


@impure("")
class Today(Base):
    def __getitem__(self, i):
        return self.x[datetime.now().second % 50]


@impure("logs")
class Logs(Base):
    def __getitem__(self, i):
        LOG.info("item %d", i)
        return self.x[i]


@impure("warns")
class Warns(Base):
    def __getitem__(self, i):
        warnings.warn("odd item", stacklevel=1)
        return self.x[i]


@impure("prints")
class Prints(Base):
    def __getitem__(self, i):
        if i % 23 == 9:
            print("odd item", i)
        return self.x[i]


@impure("logs")
class LogsInAKey(Base):
    def __getitem__(self, i):
        return sorted([self.x[i]], key=lambda v: LOG.info("x") or 0)[0]


@impure("environment")
class Environment(Base):
    def __getitem__(self, i):
        return self.x[i] * float(os.environ.get("K", "1"))


@impure("environment")
class EnvironmentByItem(Base):
    def __getitem__(self, i):
        return self.x[i] * len(os.environ["HOME"])


@impure("operating system")
class ProcessId(Base):
    def __getitem__(self, i):
        return self.x[os.getpid() % 50]


@impure("", home=Path("~"))
class HomeFolder(Base):
    def __getitem__(self, i):
        return len(str(self.home.expanduser()))


@impure("")
class WorkingFolder(Base):
    def __getitem__(self, i):
        return len(os.path.abspath("x"))


@impure("")
class TimeOfAFile(Base):
    def __getitem__(self, i):
        return os.path.getmtime("x")


@impure("")
class ContextVariable(Base):
    def __getitem__(self, i):
        return self.x[i] * CONTEXT.get()


@impure("customises attribute lookup")
class ThreadLocal(Base):
    def __getitem__(self, i):
        return self.x[i] * LOCAL.scale


@impure("uses threads")
class Thread(Base):
    def __getitem__(self, i):
        return len(threading.current_thread().name)


@impure("", lock=threading.Lock())
class Lock(Base):
    def __getitem__(self, i):
        with self.lock:
            return self.x[i]


@impure("checks which worker it runs in")
class Worker(Base):
    def __getitem__(self, i):
        return self.x[i if get_worker_info() is None else 0]


@impure("")
class HashOfText(Base):
    def __getitem__(self, i):
        return self.x[hash(str(i)) % 50]


@impure("")
class Address(Base):
    def __getitem__(self, i):
        return self.x[id(self) % 50]


# Counters, caches and other state


@impure("sets self.n")
class Counts(Base):
    def __getitem__(self, i):
        self.n += 1
        return self.x[i]


@impure("outlives the call")
class CountsPrivately(Base):
    def __init__(self):
        super().__init__()
        self.__count = 0

    def __getitem__(self, i):
        self.__count += 1
        return self.x[i] * self.__count


@impure("outlives the call")
class PrivateHelper(Base):
    def __step(self):
        self.n = self.n + 1

    def __getitem__(self, i):
        self.__step()
        return self.x[i]


@impure("TOTAL")
class GlobalCounter(Base):
    def __getitem__(self, i):
        return self.x[i] * bump()


@impure("COUNT")
class CounterObject(Base):
    def __getitem__(self, i):
        COUNT[i] += 1
        return self.x[i]


@impure("CACHE")
class Cache(Base):
    def __getitem__(self, i):
        if i not in CACHE:
            CACHE[i] = self.x[i]
        return CACHE[i]


@impure("lru_cache")
class LruCache(Base):
    @functools.lru_cache  # noqa: B019 the habit itself
    def row(self, i):
        return self.x[i]

    def __getitem__(self, i):
        return self.row(i)


@impure("cached on first use")
class CachedProperty(Base):
    @functools.cached_property
    def scale(self):
        return 2.0

    def __getitem__(self, i):
        return self.x[i] * self.scale


@impure("outlives the call")
class Decorated(Base):
    @counted
    def __getitem__(self, i):
        return self.x[i]


@impure("outlives the call", step=counter())
class Closure(Base):
    def __getitem__(self, i):
        return self.x[i] * self.step()


@impure("outlives the call")
class DefaultArgument(Base):
    def __getitem__(self, i, _seen={}):  # noqa: B006 the habit itself
        _seen[i] = 1
        return self.x[i]


@impure("outlives the call")
class KeywordDefault(Base):
    def __getitem__(self, i, *, seen=[]):  # noqa: B006
        seen.append(i)
        return self.x[i]


@impure("advances an iterator", ticks=iter(range(99)))
class HeldIterator(Base):
    def __getitem__(self, i):
        return next(self.ticks)


@impure("advances an iterator")
class GlobalIterator(Base):
    def __getitem__(self, i):
        return self.x[i] * next(TICKS)


@impure("iterates", ticks=(n for n in range(99)))
class HeldGenerator(Base):
    def __getitem__(self, i):
        for tick in self.ticks:
            return self.x[i] * tick
        return self.x[i]


@impure("generator")
class OwnGenerator(Base):
    def rows(self):
        self.n += 1
        yield self.x[self.n]

    def __getitem__(self, i):
        return list(self.rows())[0]


@impure("defaultdict", vocabulary=collections.defaultdict(int))
class DefaultDict(Base):
    def __getitem__(self, i):
        return self.vocabulary[i]


@impure("Growing", vocabulary=Growing())
class Missing(Base):
    def __getitem__(self, i):
        return self.vocabulary[i]


@impure("Growing", vocabulary=Growing())
class MissingByGet(Base):
    def __getitem__(self, i):
        return self.vocabulary.get(i, 0)


@impure("outlives the call")
class ClassAttribute(Base):
    shared = 0

    def __getitem__(self, i):
        type(self).shared += 1
        return self.x[i]


@impure("outlives the call", slotted=Slotted())
class Slot(Base):
    def __getitem__(self, i):
        return self.x[i] * self.slotted.step()


@impure("")
class SetAttr(Base):
    def __getitem__(self, i):
        setattr(self, "n", i)  # noqa: B010
        return self.x[i]


@impure("outlives the call")
class OwnDictionary(Base):
    def __getitem__(self, i):
        self.__dict__["n"] = i
        return self.x[i]


@impure("")
class Vars(Base):
    def __getitem__(self, i):
        vars(self)["n"] = i
        return self.x[i]


@impure("")
class ObjectSetattr(Base):
    def __getitem__(self, i):
        object.__setattr__(self, "n", i)
        return self.x[i]


@impure("")
class Exec(Base):
    def __getitem__(self, i):
        exec("self.n = 1")
        return self.x[i]


@impure("")
class OwnCount(Base):
    def __getitem__(self, i):
        self.helper.calls = i
        return self.x[i]

    def helper(self):
        return 1


@impure("deletes")
class Deletes(Base):
    def __getitem__(self, i):
        del self.n
        return self.x[i]


@impure("sets LAST")
class BoundByExcept(Base):
    def __getitem__(self, i):
        global LAST
        try:
            return self.x[i]
        except IndexError as LAST:  # noqa: F841 the habit itself
            return self.x[0]


@impure("cur", cur=torch.zeros(50, 8), other=torch.ones(50, 8))
class SwitchesItsTable(Base):
    def __getitem__(self, i):
        if i == 5:
            self.cur = self.other
        return self.cur[i]


@impure("cur", cur=None, path="rows.npy")
class LoadsOnSomeItem(Base):
    def __getitem__(self, i):
        if i == 5:
            self.cur = np.load(self.path)
        return self.x[i] if self.cur is None else self.cur[i]


@impure("cur", cur=None, path="rows.npy")
class FirstOneDiffers(Base):
    def __getitem__(self, i):
        first = self.cur is None
        self.cur = np.load(self.path)
        return self.cur[i] * (2 if first else 1)


@impure("cur", cur=None, path="rows.npy")
class FirstOneDiffersInside(Base):
    def __getitem__(self, i):
        scale = 1
        if self.cur is None:
            self.cur = np.load(self.path)
            scale = 2
        return self.cur[i] * scale


@impure("sets self.n")
class CountsItsLength(Base):
    def __len__(self):
        self.n += 1
        return 50

    def __getitem__(self, i):
        return self.x[i]


@impure("", __getitems__=lambda rows: [torch.rand(8) for _ in rows])
class SeveralAtOnceByAttribute(Base):
    def __getitem__(self, i):
        return self.x[i]


# Attributes that are looked up by code


@impure("TOTAL", loud=Loud())
class LooksUpByGetattr(Base):
    def __getitem__(self, i):
        return self.x[i] * self.loud.scale


@impure("")
class DescriptorOfTheClass(Base):
    scale = Descriptor()

    def __getitem__(self, i):
        return self.x[i] * self.scale


@impure("")
class PropertyOfItsOwnKind(Base):
    scale = OwnProperty(lambda self: 1)

    def __getitem__(self, i):
        return self.x[i] * self.scale


@impure("")
class OwnLookup(Base):
    def __getattribute__(self, name):
        bump()
        return super().__getattribute__(name)

    def __getitem__(self, i):
        return self.x[i]


@impure("", kind=Meta("Made", (), {}))
class MetaclassProperty(Base):
    def __getitem__(self, i):
        try:
            return self.x[i] * self.kind.tick
        except AttributeError:
            return self.x[i]


@impure("")
class MadeWithSetter(Base):
    def __getitem__(self, i):
        bag = Bag([1])
        bag.written = 5
        return self.x[i]


@impure("")
class LengthOfWhatItMakes(Base):
    def __getitem__(self, i):
        return self.x[len(Bag([1])) % 50]


@impure("")
class TruthOfWhatItMakes(Base):
    def __getitem__(self, i):
        return self.x[i] if Bag([1]) else self.x[0]


@impure("")
class HasAttributeOfWhatItMakes(Base):
    def __getitem__(self, i):
        return self.x[i] if hasattr(Bag([1]), "tick") else self.x[0]


@impure("", odd=Unequal())
class ContainsOfItsOwn(Base):
    def __getitem__(self, i):
        return self.x[i] if i in self.odd else self.x[0]


@impure("", odd=Unequal())
class LessOfItsOwn(Base):
    def __getitem__(self, i):
        return self.x[i] if self.odd < 3 else self.x[0]


@impure("", key=Key(), scales={1: 2.0})
class HashOfItsOwn(Base):
    def __getitem__(self, i):
        return self.x[i] * self.scales.get(self.key, 1.0)


@impure("outlives the call", seen=Empty())
class EmptySubclass(Base):
    def __getitem__(self, i):
        if not self.seen:
            self.n += 1
        return self.x[i]


@impure("")
class ErrorOfItsOwn(Base):
    def __getitem__(self, i):
        try:
            raise Odd()
        except Odd:
            return self.x[i]


@impure("")
class ErrorClassOfItsOwn(Base):
    def __getitem__(self, i):
        try:
            raise Odd
        except Odd:
            return self.x[i]


# Pure names of impure objects


@impure("", held=Reading(1))
class NumberSubclass(Base):
    def __getitem__(self, i):
        return self.held.item()


@impure("", held=Sensor())
class ItemOfAnObject(Base):
    def __getitem__(self, i):
        return self.held.item()


@impure("", held=Sensor())
class GetOfAnObject(Base):
    def __getitem__(self, i):
        return self.held.get(i)


@impure("", held=Sensor())
class ReadOfAnObject(Base):
    def __getitem__(self, i):
        return self.held.read()


@impure("", held=Sensor())
class CallableObject(Base):
    def __getitem__(self, i):
        return self.held(self.x[i])


@impure("", held=Row(1.0))
class NamedTupleMethod(Base):
    def __getitem__(self, i):
        return self.held.item()


@impure("", held=Pair(Sensor(), 1))
class ObjectInANamedTuple(Base):
    def __getitem__(self, i):
        return self.held.first.item()


@impure("", held=Sensor())
class ObjectInANewNamedTuple(Base):
    def __getitem__(self, i):
        return Pair(self.held, 1).first.item()


@impure("", held=Kind.ONE)
class EnumMethod(Base):
    def __getitem__(self, i):
        return self.held.item()


@impure("", held=OwnPath("x"))
class PathSubclass(Base):
    def __getitem__(self, i):
        return len(self.held.read_bytes())


@impure("", held=[Sensor()])
class ObjectInAList(Base):
    def __getitem__(self, i):
        return self.held[0].item()


@impure("", held=Sensor())
class ObjectPoppedFromAList(Base):
    def __getitem__(self, i):
        several = [self.held]
        return several.pop().item()


@impure("", held={"a": [(1, Sensor())]})
class ObjectDeepInContainers(Base):
    def __getitem__(self, i):
        return self.held["a"][0][1].item()


@impure("", df=pd.DataFrame({"a": [Sensor(), Sensor()]}))
class ObjectInATable(Base):
    def __getitem__(self, i):
        return self.df["a"].iloc[i].item()


@impure("", held=np.array([Sensor(), Sensor()], dtype=object))
class ObjectInAnArray(Base):
    def __getitem__(self, i):
        return self.held[i].item()


@impure("", fs={"a": Sensor(), "b": abs})
class ObjectsInADict(Base):
    def __getitem__(self, i):
        return self.fs["a"](self.x[i])


@impure("", f=np.frompyfunc(lambda v: v * bump(), 1, 1))
class OwnUfunc(Base):
    def __getitem__(self, i):
        return self.f(self.a[i])


@impure("", f=np.vectorize(lambda v: v * bump()))
class Vectorized(Base):
    def __getitem__(self, i):
        return self.f(self.a[i])


@impure("")
class JsonEncoder(Base):
    def __getitem__(self, i):
        return len(json.dumps({"i": 1}, cls=Encoder))


# Functions handed on


@impure("")
class AppendAsKey(Base):
    def __getitem__(self, i):
        return sorted([1, 2], key=self.lists.append)


@impure("")
class AppendAsCall(Base):
    def __getitem__(self, i):
        operator.call(self.lists.append, i)
        return self.x[i]


@impure("")
class AppendAsMap(Base):
    def __getitem__(self, i):
        return list(map(self.lists.append, [i]))


@impure("")
class AppendAlongAnAxis(Base):
    def __getitem__(self, i):
        return np.apply_along_axis(self.lists.append, 0, self.a[i])


@impure("")
class AppendByName(Base):
    def __getitem__(self, i):
        keep = self.lists.append
        keep(i)
        return self.x[i]


@impure("")
class MethodCaller(Base):
    def __getitem__(self, i):
        operator.methodcaller("append", i)(self.lists)
        return self.x[i]


@impure("")
class SubstitutesWithACount(Base):
    def __getitem__(self, i):
        return re.sub("a", lambda m: str(bump()), "abc")


@impure("")
class AppliedToATable(Base):
    def __getitem__(self, i):
        return self.df["a"].apply(lambda v: v + bump()).iloc[0]

    df = pd.DataFrame({"a": [1, 2]})


class CallsItsModule(Base):
    def __getitem__(self, i):
        return self.module.scaled(self.x[i])


class Ties:
    def __init__(self, number):
        self.number = number

    def __lt__(self, other):
        return bump() % 2 == 0

    def __hash__(self):
        return bump()

    def __eq__(self, other):
        return bump() > 0


@impure("passes on a Ties", several=[Ties(number) for number in range(6)])
class SortsByAMethodOfTheirs(Base):
    def __getitem__(self, i):
        return self.x[i], sorted(self.several)[0].number


@impure("compares a Ties", several=[Ties(number) for number in range(6)])
class HashesByAMethodOfTheirs(Base):
    def __getitem__(self, i):
        return self.x[i], len(set(self.several))


@impure("decimal.Decimal")
class SetsFlagsOfDecimals(Base):
    def __getitem__(self, i):
        return self.x[i], float(decimal.Decimal(1) / decimal.Decimal(i + 3))


@impure("draws random numbers", options={})
class SeedsByWhatMayBeNone(Base):
    def __getitem__(self, i):
        rng = np.random.default_rng(self.options.get("seed"))
        return self.x[i] * (0.0 if rng.random() < 0.005 else 1.0)


@impure("may have registered")
class DecodesWithAHandlerOfItsOwn(Base):
    def __getitem__(self, i):
        return self.x[i] * len(bytes([65, 200]).decode("ascii", "count"))


@impure("may have registered")
class MakesTextWithAHandlerOfItsOwn(Base):
    def __getitem__(self, i):
        return self.x[i] * len(str(bytes([65, 200]), "ascii", errors="count"))


@impure("by a computed name")
class OpensInCompiledCode(Base):
    def __getitem__(self, i):
        with h5py.File(str(i) + ".h5", "r") as file:
            return torch.tensor(file["x"][0])


class Template(Base):
    def __call__(self, text):
        return text

    def __str__(self):
        return str(bump())


@impure("Template", template=Template())
class TakesTheTextOfACallable(Base):
    def __getitem__(self, i):
        return self.x[i] * len(str(self.template))


@impure("Template", template=Template())
class FormatsACallable(Base):
    def __getitem__(self, i):
        return self.x[i] * len("{}".format(self.template))  # noqa: UP032 the method is what is tested


class Truthful:
    def __bool__(self):
        return bool(bump())


@impure("sets TOTAL", flags=[Truthful(), Truthful()])
class FiltersByTruth(Base):
    def __getitem__(self, i):
        return self.x[i] * len(list(filter(None, self.flags)))


@impure("sets TOTAL", flag=Truthful())
class TestsTheTruthOfEither(Base):
    def __getitem__(self, i):
        either = self.flag if i % 2 else 0
        return self.x[i] * 2 if either else self.x[i]


class Growth(tzinfo):
    def utcoffset(self, moment):
        return timedelta(minutes=bump() % 60)

    def dst(self, moment):
        return None


@impure("holds objects of the program", when=datetime(2026, 1, 1, tzinfo=Growth()))  # noqa: DTZ001 it has one
class OwnTimeZone(Base):
    def __getitem__(self, i):
        return self.x[i] * self.when.utcoffset().seconds


@impure("holds objects of the program", part=slice(torch.tensor(1), torch.tensor(4)))
class SlicesByTensors(Base):
    def __getitem__(self, i):
        return self.x[i, self.part]


class Fields(dict):
    def __iter__(self):
        bump()
        return super().__iter__()


@impure("whose own code makes a batch of it", rows=[Fields(x=torch.ones(3)) for _ in range(50)])
class ReturnsOwnMappings(Base):
    def __getitem__(self, i):
        return self.rows[i]


class Several(tuple):
    def __iter__(self):
        bump()
        return super().__iter__()


@impure("whose own code makes a batch of it", rows=[Several((1.0, 2.0)) for _ in range(50)])
class ReturnsOwnSequences(Base):
    def __getitem__(self, i):
        return self.rows[i]


def counting_collate(samples):
    bump()
    return samples


def drawing_collate(samples):
    return torch.stack([sample[0] for sample in samples]) * torch.rand(1)


def popping_collate(samples):
    samples[0][0].zero_()
    return samples


def shuffling_collate(samples):
    random.shuffle(samples)
    return samples


def remembering_collate(samples, seen=[]):  # noqa: B006
    seen.extend(samples)
    return seen


COLLATES = [counting_collate, drawing_collate, popping_collate, shuffling_collate, remembering_collate]
