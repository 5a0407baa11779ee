"""Whether fetching the items of a dataset is known to be pure, by reading its code; and what it reads.

`study_of(dataset)` gives a Study or raises Impure with the line that is to blame.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hotlap.loading.purity.objects import MissingAttribute
from hotlap.loading.purity.reader import Reader
from hotlap.loading.purity.study import MOST_SECONDS, Impure, Study
from hotlap.loading.purity.values import UNKNOWN, Value, container, either

__all__ = ["MOST_SECONDS", "Impure", "Study", "study_of", "study_of_collate"]

INDEX = Value(plain=True, steady=False)


def study_of(dataset: Any, draws: bool = False) -> Study:
    """Of `dataset[index]` for any index, of its length, and of `dataset.__getitems__` where it has that.

    With `draws` it may draw from the streams that torch seeds in each worker.
    """
    study = Study(may_draw=draws)
    reader = Reader(study)
    try:
        whole = reader.objects.value_of(dataset)
        one = reader.subscript(whole, INDEX)
        study.result = either([one, *_several(reader, whole)])
        reader.length(whole)
    except RecursionError:
        raise Impure("its code is nested too deeply to be read") from None
    finally:
        reader.end()
    if study.result.nothing:
        raise Impure("its code gives no item")
    if whole.plain:
        study.containers[id(dataset)] = dataset  # a list of samples, or a tensor
    return study.end()


def _several(reader: Reader, dataset: Value) -> list[Value]:
    """What torch's fetcher asks for, however the dataset comes by it."""
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
    """Of what a collate_fn makes of samples such as a dataset was found to give."""
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
