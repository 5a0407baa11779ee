"""Reads a dataset's code to find out whether fetching its items is known to be pure, and what it reads.

`study_of(dataset)` returns a Study, or raises Impure with the line that is to blame.

    study                                   the result: everything that fetching reads
    values, questions, comparisons          what is known of a value, and what must hold of one
    plain, objects                          objects that exist now, as values
    source, guards                          the syntax tree of a function, and its usual way to open a file once
    pure_operations, rules, genuine         the list of pure operations, what it says of a function, and whose that is
    library_types, seeded_generators        methods that a program can replace, and generators whose seed is known
    frames, created                         the calls under way, and what they create
    reading, changes, lookups, builtin_functions, methods, library_calls, calls, expressions, statements, reader
                                            the reader, from what all layers share up to the functions it follows
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hotlap.loading.purity.created import Instance
from hotlap.loading.purity.genuine import genuine_of
from hotlap.loading.purity.library_types import replaced_unnamed
from hotlap.loading.purity.objects import MissingAttribute
from hotlap.loading.purity.reader import Reader
from hotlap.loading.purity.study import Impure, Study
from hotlap.loading.purity.values import UNKNOWN, Value, container, either

__all__ = ["Impure", "Study", "study_of", "study_of_collate"]

INDEX = Value(plain=True, steady=False, item=True)
LOOKED_INTO = (Mapping, Sequence)
SUBSET = ("__getitem__", "__getitems__", "__len__")


def study_of(dataset: Any, draws: bool = False) -> Study:
    """Study `dataset[index]` for any index, its length, and `dataset.__getitems__` if it has that.

    With `draws`, the code may draw from the streams that torch seeds in each worker.
    """
    _require_libraries_own()
    study = Study(may_draw=draws)
    reader = Reader(study)
    try:
        whole = reader.objects.value_of(dataset)
        inner = _taken_from(reader, whole)
        item = reader.subscript(inner, INDEX)
        study.result = either([item, *_several(reader, inner)])
        reader.length(inner)
        _note_rows(reader, inner)
    except RecursionError:
        raise Impure("its code is nested too deeply to be read") from None
    finally:
        reader.end()
    if study.result.nothing:
        raise Impure("its code gives no item")
    _require_no_code_in(study.result)
    if whole.plain:
        study.containers[id(dataset)] = dataset  # a list of samples, or a tensor
    return study.end()


def _require_libraries_own() -> None:
    if (name := replaced_unnamed()) is not None:
        raise Impure(f"the program has replaced {name}")


def _require_no_code_in(result: Value) -> None:
    """Raise Impure if torch's default_collate would run code of the program to look into an item."""
    kinds = [*map(type, result.objects), *(made.kind for made in result.made if isinstance(made, Instance))]
    for kind in kinds:
        if issubclass(kind, LOOKED_INTO):
            raise Impure(f"returns a {kind.__name__}, whose own code makes a batch of it")
    for part in result.parts():
        _require_no_code_in(part)


def _taken_from(reader: Reader, dataset: Value) -> Value:
    """Return the dataset a subset is taken from. For each item, the subset reads an index and then that item."""
    kind = sys.modules["torch"].utils.data.Subset
    genuine = all(genuine_of("torch", vars(kind)[name]) for name in SUBSET if name in vars(kind))
    while genuine and dataset.objects and type(dataset.objects[0]) is kind:
        for name in SUBSET:
            reader.objects.attribute(dataset.objects[0], name)
        loaded = len(reader.study.loads)
        reader.study.looked_up(reader.load_attribute(dataset, "indices"), loaded, by_row=True)
        dataset = reader.load_attribute(dataset, "dataset")
    return dataset


def _note_rows(reader: Reader, dataset: Value) -> None:
    """Note reads by row, if the dataset is itself a list or tensor, or is torch's TensorDataset."""
    study = reader.study
    if dataset.plain:
        study.looked_up(dataset, 0, by_row=True)
    kind = sys.modules["torch"].utils.data.TensorDataset
    if [type(candidate) for candidate in dataset.objects] == [kind] and genuine_of("torch", kind.__getitem__):
        tensors = dataset.objects[0].tensors
        study.loads[:] = [load for load in study.loads if load.obj is not tensors]
        study.by_row.update(map(id, tensors))


def _several(reader: Reader, dataset: Value) -> list[Value]:
    """Return the result of `__getitems__`, which torch's fetcher calls wherever the dataset gets it from."""
    if dataset.plain:
        return []
    try:
        method = reader.load_attribute(dataset, "__getitems__")
    except MissingAttribute:
        return []
    if method.known is None:
        return []
    return [reader.iterated(reader.call_value(method, [container(INDEX)], {}))]


def study_of_collate(collate: Any, sample: Value, draws: bool = False) -> Study:
    """Study a collate_fn on samples such as the dataset was found to return."""
    _require_libraries_own()
    study = Study(may_draw=draws)
    reader = Reader(study)
    try:
        samples = container(replace(sample.unsteady(), own=False, deep=False, known=UNKNOWN))
        study.result = reader.call_object(collate, [samples], {})
    except RecursionError:
        raise Impure("its code is nested too deeply to be read") from None
    finally:
        reader.end()
    return study.end()
