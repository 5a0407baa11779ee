"""Datasets that write into objects outliving the call, in less and less obvious ways, and branches that look fixed."""

from __future__ import annotations

import collections
import copy
import itertools
import operator
import pathlib
import statistics
from enum import Enum

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from PIL import Image

from tests.loading.impure_sets import CASES as CASES
from tests.loading.impure_sets import Base, Flag, Sensor, bump, impure, of_flag, put, second_of


@impure("writes into x")
class InPlace(Base):
    def __getitem__(self, i):
        x = self.x[i]
        x += 1
        return x


@impure("writes into")
class ThroughNumpy(Base):
    def __getitem__(self, i):
        x = torch.from_numpy(self.a[i])
        x.mul_(2)
        return x


@impure("writes into")
class ThroughTorch(Base):
    def __getitem__(self, i):
        x = self.x[i].numpy().reshape(2, 4)
        x.sort()
        return x


@impure("writes into")
class View(Base):
    def __getitem__(self, i):
        x = self.x[i].view(2, 4)
        x[0] = 0
        return x


@impure("writes into")
class Data(Base):
    def __getitem__(self, i):
        self.x.data[i] = 0
        return self.x[i]


@impure("writes into")
class Transposed(Base):
    def __getitem__(self, i):
        x = self.a.T
        x[0, i] = 0
        return self.a[i]


@impure("writes into")
class OutByName(Base):
    def __getitem__(self, i):
        np.add(self.a[i], 1, out=self.a[i])
        return self.a[i]


@impure("writes into")
class OutByPosition(Base):
    def __getitem__(self, i):
        np.add(self.a[i], 1, self.a[i])
        return self.a[i]


@impure("writes into")
class ClipByPosition(Base):
    def __getitem__(self, i):
        np.clip(self.a[i], 0, 1, self.a[i])
        return self.a[i]


@impure("writes into")
class ConcatenateByPosition(Base):
    def __getitem__(self, i):
        np.concatenate([self.a[i], self.a[i]], 0, self.wide)
        return self.wide

    wide = np.zeros(16)


@impure("writes into")
class MethodOutByPosition(Base):
    def __getitem__(self, i):
        self.a[i].clip(0, 1, self.a[i])
        return self.a[i]


@impure("writes into")
class MethodOutByName(Base):
    def __getitem__(self, i):
        self.a.sum(0, out=self.a[i])
        return self.a[i]


@impure("writes into")
class TorchOut(Base):
    def __getitem__(self, i):
        torch.add(self.x[i], 1, out=self.x[i])
        return self.x[i]


@impure("writes into")
class FunctionalInPlace(Base):
    def __getitem__(self, i):
        return F.relu(self.x[i], inplace=True)


@impure("writes into")
class FunctionalInPlaceByPosition(Base):
    def __getitem__(self, i):
        return F.leaky_relu(self.x[i], 0.1, True)


@impure("writes into")
class OverwrittenInput(Base):
    def __getitem__(self, i):
        return np.median(self.a[i], overwrite_input=True)


@impure("writes into")
class NotANumber(Base):
    def __getitem__(self, i):
        return np.nan_to_num(self.a[i], copy=False)


@impure("writes into")
class ArrayWithoutCopy(Base):
    def __getitem__(self, i):
        x = np.array(self.a, copy=None)
        x[i] = 0
        return x[i]


@impure("writes into")
class ArraySplit(Base):
    def __getitem__(self, i):
        first = np.array_split(self.a, 2)[0]
        first[0] = i
        return first


@impure("writes into")
class MeshGrid(Base):
    def __getitem__(self, i):
        (grid,) = torch.meshgrid(self.x[i])
        grid[0] = 0
        return grid


@impure("writes into")
class RealIfClose(Base):
    def __getitem__(self, i):
        x = np.real_if_close(self.a)
        x[i] = 0
        return x[i]


@impure("")
class CopyTo(Base):
    def __getitem__(self, i):
        np.copyto(self.a[i], 0)
        return self.a[i]


@impure("")
class UfuncAt(Base):
    def __getitem__(self, i):
        np.add.at(self.a, i, 1)
        return self.a[i]


@impure("")
class DunderAdd(Base):
    def __getitem__(self, i):
        self.a[i].__iadd__(1)
        return self.a[i]


@impure("")
class OperatorAdd(Base):
    def __getitem__(self, i):
        operator.iadd(self.a[i], 1)
        return self.a[i]


@impure("")
class OperatorMatmul(Base):
    def __getitem__(self, i):
        operator.imatmul(self.square, self.square)
        return self.square

    square = np.eye(3)


@impure("")
class OperatorShift(Base):
    def __getitem__(self, i):
        operator.ilshift(self.bits, 1)
        return self.bits

    bits = np.ones(3, dtype=np.int64)


@impure("")
class OperatorSetItem(Base):
    def __getitem__(self, i):
        operator.setitem(self.lists, 0, i)
        return self.x[i]


@impure("")
class Flags(Base):
    def __getitem__(self, i):
        self.a.flags.writeable = False
        return self.a[i]


@impure("")
class RequiresGrad(Base):
    def __getitem__(self, i):
        self.x.requires_grad_()
        return self.x[i]


@impure("")
class GradMode(Base):
    def __getitem__(self, i):
        torch.set_grad_enabled(False)
        return self.x[i]


@impure("writes into")
class MemoryView(Base):
    def __getitem__(self, i):
        view = memoryview(self.flat)
        view[0] = i
        return self.flat

    flat = np.zeros(4)


def marked():
    tensor = torch.ones(50)
    tensor.sensor = Sensor()
    return tensor


@impure("", tensor=marked())
class AttributeOfATensor(Base):
    def __getitem__(self, i):
        return self.tensor[i] * self.tensor.sensor.item()


@impure("", rec=np.zeros(2, dtype=[("a", "f4")])[0])
class Record(Base):
    def __getitem__(self, i):
        self.rec["a"] = i
        return self.rec["a"]


@impure("writes into", df=pd.DataFrame({"a": [1.0, 2.0]}))
class TableCell(Base):
    def __getitem__(self, i):
        self.df.loc[i, "a"] = 3
        return self.df["a"][0]


@impure("writes into", df=pd.DataFrame({"a": [1.0, 2.0]}))
class TableInPlace(Base):
    def __getitem__(self, i):
        self.df.fillna(0, inplace=True)
        return self.df["a"][0]


@impure("writes into")
class TableOfAnArray(Base):
    def __getitem__(self, i):
        table = pd.DataFrame(self.a)
        table.iloc[0, 0] = i
        return self.a[i]


@impure("", image=Image.new("L", (4, 4)))
class Pixel(Base):
    def __getitem__(self, i):
        self.image.putpixel((0, 0), i)
        return self.image.getpixel((0, 0))


@impure("", image=Image.new("L", (4, 4)))
class ClosesWhatItHolds(Base):
    def __getitem__(self, i):
        self.image.close()
        return self.x[i]


@impure("", image=Image.new("L", (4, 4)))
class LeavesWhatItHolds(Base):
    def __getitem__(self, i):
        with self.image as image:
            return image.getpixel((0, 0))


# Through containers


@impure("writes into")
class ListOfIt(Base):
    def __getitem__(self, i):
        several = [self.a]
        several[0][i] = 1
        return self.x[i]


@impure("writes into")
class DictOfIt(Base):
    def __getitem__(self, i):
        several = {"a": self.a[i]}
        several["a"] -= 1
        return several


@impure("outlives the call")
class Unpacked(Base):
    def __getitem__(self, i):
        _, *rest = self.lists
        rest[0].append(i)
        return self.x[i]


@impure("writes into")
class Appended(Base):
    def __getitem__(self, i):
        rows = []
        rows.append(self.a)
        rows[0][i] = 5
        return self.x[i]


@impure("writes into")
class AppendedInAComprehension(Base):
    def __getitem__(self, i):
        rows = []
        [rows.append(row) for row in self.a]
        rows[0][0] = 5
        return self.x[i]


@impure("writes into")
class AppendedByAHelperTwice(Base):
    def __getitem__(self, i):
        first = []
        put(first, self.a)
        second = []
        put(second, self.a)
        second[0][0] = 5
        return self.x[i]


@impure("writes into")
class SumOfLists(Base):
    def __getitem__(self, i):
        rows = sum([[self.a], [self.a]], [])
        rows[0][i] = 5
        return self.x[i]


@impure("writes into", several={"a": np.zeros(3)})
class CopyOfADict(Base):
    def __getitem__(self, i):
        mine = dict(self.several)
        mine["a"][0] = i
        return mine["a"]


@impure("writes into")
class DictOfPairs(Base):
    def __getitem__(self, i):
        mine = dict(zip(["a"], [self.a], strict=True))
        mine["a"][i] = 1
        return mine["a"]


@impure("writes into")
class SpreadDict(Base):
    def __getitem__(self, i):
        first = {"a": self.a}
        mine = {**first}
        mine["a"][i] = 1
        return mine["a"]


@impure("writes into")
class DequeOfThem(Base):
    def __getitem__(self, i):
        rows = collections.deque([self.a])
        rows[0][i] = 5
        return self.x[i]


@impure("", several=[np.zeros(3), np.zeros(3)])
class Accumulated(Base):
    def __getitem__(self, i):
        first = list(itertools.accumulate(self.several, lambda a, b: a + b))[0]
        first[0] = i
        return first


@impure("")
class ArrayOfObjects(Base):
    def __getitem__(self, i):
        rows = np.empty(1, dtype=object)
        rows[0] = self.lists
        rows[0].append(i)
        return self.x[i]


@impure("", dicts=[{"n": 0}, {"n": 1}])
class ArrayOfDicts(Base):
    def __getitem__(self, i):
        rows = np.array(self.dicts)
        rows[0]["n"] = i
        return self.x[i]


@impure("")
class ShallowCopy(Base):
    def __getitem__(self, i):
        mine = copy.copy(self.lists)
        mine[0].append(i)
        return self.x[i]


@impure("")
class SpreadArguments(Base):
    def __getitem__(self, i):
        return second_of(*self.lists)


@impure("", several=[[[1.0], [2.0]]] * 50)
class SpreadUnknownArguments(Base):
    def __getitem__(self, i):
        return second_of(*self.several[i])


@impure("outlives the call")
class Aliased(Base):
    def __getitem__(self, i):
        mine = self.lists
        also = mine
        also[0] += [i]
        return self.x[i]


@impure("outlives the call")
class ReturnedByAHelper(Base):
    def rows(self):
        return self.lists

    def __getitem__(self, i):
        self.rows()[0].append(i)
        return self.x[i]


@impure("outlives the call")
class ChosenBetween(Base):
    def __getitem__(self, i):
        rows = [1] if i > 3 else self.lists
        rows.append(i)
        return self.x[i]


@impure("outlives the call")
class ByGet(Base):
    def __getitem__(self, i):
        {"a": self.lists}.get("a").append(i)
        return self.x[i]


@impure("outlives the call")
class BySetDefault(Base):
    def __getitem__(self, i):
        {}.setdefault("a", self.lists).append(i)
        return self.x[i]


@impure("outlives the call")
class Walrus(Base):
    def __getitem__(self, i):
        (rows := self.lists).append(i)
        return rows


@impure("outlives the call")
class DeletedItem(Base):
    def __getitem__(self, i):
        del self.lists[0]
        return self.x[i]


@impure("")
class WritesAFile(Base):
    def __getitem__(self, i):
        with open("seen.txt", "a") as file:
            file.write(str(i))
        return self.x[i]


@impure("")
class WritesAMap(Base):
    def __getitem__(self, i):
        rows = np.load("rows.npy", "r+")
        rows[i] = 0
        return rows[i]


# Branches that only seem decided


@impure("TOTAL")
class FlagSetInAList(Base):
    def __getitem__(self, i):
        flags = [False]
        flags[0] = True
        if flags[0]:
            bump()
        return self.x[i]


@impure("TOTAL")
class FlagSetInANestedList(Base):
    def __getitem__(self, i):
        flags = [[False]]
        flags[0][0] = True
        if flags[0][0]:
            bump()
        return self.x[i]


@impure("TOTAL")
class FlagSetInANestedDict(Base):
    def __getitem__(self, i):
        flags = {"a": {"on": False}}
        flags["a"]["on"] = True
        if flags["a"]["on"]:
            bump()
        return self.x[i]


@impure("TOTAL")
class SortedNumbers(Base):
    def __getitem__(self, i):
        if sorted([2, 1])[0] == 1:
            bump()
        return self.x[i]


@impure("TOTAL")
class ReversedNumbers(Base):
    def __getitem__(self, i):
        if list(reversed([2, 1]))[0] == 1:
            bump()
        return self.x[i]


@impure("TOTAL")
class NumberDeleted(Base):
    def __getitem__(self, i):
        numbers = [2, 1]
        del numbers[0]
        if numbers[0] == 1:
            bump()
        return self.x[i]


@impure("TOTAL")
class SecondIteration(Base):
    def __getitem__(self, i):
        again = False
        for _ in range(2):
            if again:
                bump()
            again = True
        return self.x[i]


@impure("TOTAL")
class SecondIterationOfAList(Base):
    def __getitem__(self, i):
        flags = [False]
        for items in [flags, flags]:
            if items[0]:
                bump()
            flags[0] = True
        return self.x[i]


@impure("TOTAL")
class SecondIterationOfAComprehension(Base):
    def __getitem__(self, i):
        flags = [False]
        [bump() if flags[0] else flags.__setitem__(0, True) for _ in range(2)]
        return self.x[i]


@impure("TOTAL")
class SecondIterationByWalrus(Base):
    def __getitem__(self, i):
        again = False
        [(bump() if again else 0, again := True) for _ in range(2)]
        return self.x[i]


@impure("TOTAL")
class SecondCallOfAKey(Base):
    def __getitem__(self, i):
        flags = [False]
        sorted([2, 1], key=lambda v: bump() if flags[0] else flags.append(flags.__setitem__(0, True)) or v)
        return self.x[i]


@impure("")
class GeneratorReadLater(Base):
    def __getitem__(self, i):
        flags = [False]
        later = (bump() if flags[0] else 0 for _ in range(2))
        flags[0] = True
        return list(later)


@impure("")
class GeneratorReadAfterRebinding(Base):
    def __getitem__(self, i):
        flag = False
        later = (bump() if flag else 0 for _ in range(2))
        flag = True
        return list(later)


@impure("")
class MapReadLater(Base):
    def __getitem__(self, i):
        flag = False
        later = map(lambda v: bump() if flag else v, [1, 2])
        flag = True
        return list(later)


@impure("TOTAL")
class ClosureReadLater(Base):
    def __getitem__(self, i):
        flag = False

        def later():
            return bump() if flag else 0

        flag = True
        return later()


@impure("TOTAL")
class HelperCalledAgain(Base):
    def __getitem__(self, i):
        flag = Flag()
        of_flag(flag)
        flag.on = True
        of_flag(flag)
        return self.x[i]


@impure("TOTAL")
class OnlyOnErrors(Base):
    def __getitem__(self, i):
        try:
            return self.lists[i]
        except IndexError:
            bump()
        return self.x[i]


@impure("TOTAL")
class FinallyAfterAnError(Base):
    def __getitem__(self, i):
        busy = False
        try:
            busy = True
            row = self.lists[i]
            busy = False
        finally:
            if busy:
                bump()
        return row


@impure("TOTAL", held=None)
class OnlyOnMissing(Base):
    def __getitem__(self, i):
        try:
            return self.absent[i]
        except AttributeError:
            return bump()


@impure("outlives the call")
class OnlyOnTheLast(Base):
    def __getitem__(self, i):
        if i == len(self) - 1:
            self.n = 0
        return self.x[i]


@impure("TOTAL")
class ElseOfALoop(Base):
    def __getitem__(self, i):
        for values in self.lists:
            if values == i:
                break
        else:
            bump()
        return self.x[i]


@impure("TOTAL")
class Inherited(Base):
    def __getitem__(self, i):
        return self.x[i] * bump()


@impure("TOTAL")
class BySuper(Inherited):
    def __getitem__(self, i):
        return super().__getitem__(i) * 2


@impure("TOTAL")
class ByClass(Base):
    def __getitem__(self, i):
        return Inherited.__getitem__(self, i)


@impure("", several=[Sensor(), abs])
class CallsOneOfSeveral(Base):
    def __getitem__(self, i):
        return self.several[i % 2](self.x[i])


# Arrays of objects, and what stands behind the names of others


def listed_objects():
    rows = np.empty(2, dtype=object)
    rows[0], rows[1] = [1.0], [2.0]
    return rows


@impure("", rows=listed_objects())
class ListOfAnObjectArray(Base):
    def __getitem__(self, i):
        self.rows.tolist()[0].append(i)
        return self.x[i]


@impure("", rows=listed_objects())
class ItemOfAnObjectArray(Base):
    def __getitem__(self, i):
        self.rows.item(0).append(i)
        return self.x[i]


@impure("", rows=listed_objects())
class CopyOfAnObjectArray(Base):
    def __getitem__(self, i):
        self.rows.copy()[0][0] = i
        return self.x[i]


@impure("", rows=listed_objects())
class JoinedObjectArrays(Base):
    def __getitem__(self, i):
        np.concatenate([self.rows, self.rows])[0][0] = i
        return self.x[i]


@impure("", rows=listed_objects())
class RowOfAnObjectArray(Base):
    def __getitem__(self, i):
        row = self.rows[i]
        row += [1.0]
        return self.x[i]


class Level(Enum):
    LOW = 1

    @property
    def value(self):
        return bump()


@impure("TOTAL", level=Level.LOW)
class EnumValue(Base):
    def __getitem__(self, i):
        return self.x[i] * self.level.value


@impure("TOTAL")
class PrivateInAClosure(Base):
    def __step(self):
        return bump()

    def __getitem__(self, i):
        return [self.__step() for _ in range(1)][0]


@impure("TOTAL")
class PrivateInALambda(Base):
    def __step(self, x):
        return bump()

    def __getitem__(self, i):
        return max([1, 2], key=lambda v: self.__step(v))


@impure("", file=None)
class OpensPerItem(Base):
    def __getitem__(self, i):
        if self.file is None:
            self.file = np.load(f"{i}.npy")
        return self.file[0]


@impure("", file=None, path="rows.npy")
class OpensInAnErrorsHandler(Base):
    def __getitem__(self, i):
        try:
            return self.file[i]
        except TypeError:
            self.file = np.load(self.path)
            return self.x[i]


@impure("", file=None, path="rows.npy")
class OpensAndTellsByAMethod(Base):
    def first(self):
        return self.file is None

    def __getitem__(self, i):
        scale = 2 if self.first() else 1
        if self.file is None:
            self.file = np.load(self.path)
        return self.file[i] * scale


@impure("", file=None, path="rows.npy")
class OpensInALoop(Base):
    def __getitem__(self, i):
        for _ in range(i):
            self.file = np.load(self.path)
        return self.x[i] if self.file is None else self.file[i]


@impure("")
class OneGeneratorReadByAnother(Base):
    def __getitem__(self, i):
        flags = [False]
        return list(
            zip(
                (bump() if flags[0] else 0 for _ in range(2)),
                (flags.append(flags.pop() or True) for _ in range(2)),
                strict=True,
            )
        )


@impure("TOTAL")
class FieldChangedInAnArgument(Base):
    def __getitem__(self, i):
        flag = Flag()

        def turn():
            flag.on = True

        return [flag, turn(), of_flag(flag)][2] or self.x[i]


@impure("TOTAL")
class ObjectsInALoop(Base):
    def __getitem__(self, i):
        flag = Flag()
        for _ in range(2):
            of_flag(flag)
            flag.on = True
        return self.x[i]


@impure("TOTAL")
class ListHeldByAnObject(Base):
    def __getitem__(self, i):
        flag = Flag()
        flag.several = [False]
        flag.several[0] = True
        if flag.several[0]:
            bump()
        return self.x[i]


@impure("TOTAL")
class BoundInAWhile(Base):
    def __getitem__(self, i):
        step = 0
        while step < 3:
            if step == 2:
                bump()
            step += 1
        return self.x[i]


@impure("TOTAL")
class ShortCircuit(Base):
    def __getitem__(self, i):
        return i > 40 and bump() or self.x[i]


@impure("TOTAL")
class ConditionalExpression(Base):
    def __getitem__(self, i):
        return self.x[i] if i % 17 else bump()


@impure("TOTAL")
class InAnFString(Base):
    def __getitem__(self, i):
        return f"{bump()} of {i}"


@impure("TOTAL")
class InASlice(Base):
    def __getitem__(self, i):
        return self.x[0 : bump()]


@impure("TOTAL")
class InADefault(Base):
    def __getitem__(self, i):
        def inner(k=bump()):  # noqa: B008
            return k

        return self.x[i] * inner()


@impure("TOTAL")
class InAKeyword(Base):
    def __getitem__(self, i):
        return torch.clamp(self.x[i], min=bump())


@impure("TOTAL")
class InAnAssertion(Base):
    def __getitem__(self, i):
        if self.x[i].sum() > 1e9:
            raise ValueError(f"odd {bump()}")
        return self.x[i]


@impure("TOTAL")
class InAContext(Base):
    def __getitem__(self, i):
        with torch.no_grad():
            return self.x[i] * bump()


@impure("TOTAL", tf={"train": [abs, lambda x: x * bump()]})
class FunctionDeepInAContainer(Base):
    def __getitem__(self, i):
        x = self.x[i]
        for step in self.tf["train"]:
            x = step(x)
        return x


# Functions and methods that look as if they made something new


@impure("writes into x")
class Positive(Base):
    def __getitem__(self, i):
        x = +self.x[i]
        x.mul_(2)
        return x


@impure("writes into x")
class PositiveOperator(Base):
    def __getitem__(self, i):
        x = operator.pos(self.x[i])
        x += 1
        return x


@impure("writes into x")
class ItemOperator(Base):
    def __getitem__(self, i):
        x = operator.getitem(self.x, i)
        x += 1
        return x


@impure("writes into x")
class Mode(Base):
    def __getitem__(self, i):
        x = statistics.mode([self.x[i]])
        x += 1
        return x


@impure("writes into x")
class SumOfNone(Base):
    def __getitem__(self, i):
        x = sum([], self.x[i])
        x += 1
        return x


@impure("deque", turns=collections.deque([1.0, 2.0]))
class Rotates(Base):
    def __getitem__(self, i):
        self.turns.rotate(1)
        return self.x[i] * self.turns[0]


@impure("conjugate")
class ConjugateInto(Base):
    def __getitem__(self, i):
        self.a[i].conjugate(self.a[0])
        return self.a[i]


@impure("path", root=pathlib.Path("here"))
class Renames(Base):
    def __getitem__(self, i):
        self.root.rename("there")
        return self.x[i]


@impure("path", root=pathlib.Path("here"))
class Replaces(Base):
    def __getitem__(self, i):
        self.root.replace("there")
        return self.x[i]


@impure("not known")
class NormalDistribution(Base):
    def __getitem__(self, i):
        return self.x[i] + statistics.NormalDist.samples(statistics.NormalDist(), 1)[0]


@impure("reads the clock")
class Clock(Base):
    def __getitem__(self, i):
        return self.x[i] * float(np.datetime64("now") > np.datetime64("2020-01-01"))


@impure("outlives the call", rows=None)
class LoadsAtFirst(Base):
    """The program may write into the array, which no file shows."""

    def __getitem__(self, i):
        if self.rows is None:
            self.rows = np.load("rows.npy")
        return self.rows[i]


@impure("reads .gain of a value", images=[Image.new("L", (2, 2)) for _ in range(4)])
class AttributeOfAnElement(Base):
    def __getitem__(self, i):
        return self.x[i] * self.images[i % 4].gain


@impure("reads .grad of a value", parts=[torch.zeros(8, requires_grad=True) for _ in range(4)])
class GradientOfAnElement(Base):
    def __getitem__(self, i):
        return self.x[i] + self.parts[i % 4].grad


@impure("reads .gain of a DataFrame", frame=pd.DataFrame({"label": range(50)}))
class AttributeOfATable(Base):
    def __getitem__(self, i):
        return self.x[i] * self.frame.gain


@impure("writes into")
class ConvertedToItsOwn(Base):
    def __getitem__(self, i):
        return self.x[i].float().mul_(2)
