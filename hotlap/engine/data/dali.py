"""A pipeline of NVIDIA DALI as a source. It reads, decodes and shuffles by itself, on the processor or the GPU."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import torch
from torch import Tensor

from hotlap.engine.data.errors import DataMismatch, optional
from hotlap.engine.data.iterables import IterableStream
from hotlap.engine.data.sources import require_rows


def is_dali(data: object) -> bool:
    """Return whether this is a pipeline or an iterator of DALI's PyTorch plugin, without importing them."""
    classes = [(kind.__module__, kind.__name__) for kind in type(data).__mro__]
    return ("nvidia.dali.pipeline", "Pipeline") in classes or any(
        module.startswith("nvidia.dali.plugin.pytorch") for module, _ in classes
    )


class DaliStream(IterableStream):
    """The batches of an iterator of DALI's PyTorch plugin; one is made for a pipeline."""

    def __init__(self, given: Any, rows: int | None, columns: Sequence[str] | None) -> None:
        self.iterator = (
            given if hasattr(given, "reset") and hasattr(given, "__next__") else iterator_over(given, columns)
        )
        self.columns, self.seed = columns, 0
        self.batch_size = int(self.iterator.batch_size)
        found = rows_of_epoch(self.iterator) if rows is None else rows
        if found is None:
            raise DataMismatch(
                "the DALI iterator does not say how many rows an epoch has; make it with reader_name=…, or use "
                "Loader(iterator, rows=…)"
            )
        self.ends = rows_of_epoch(self.iterator) is not None
        self.rows = require_rows(found, "the pipeline")
        self.has_begun = False

    def order(self, seed: int, epoch: int) -> Tensor:
        return torch.arange(self.rows)

    def fetched(self, batch_size: int) -> Generator[Any, None, None]:
        """Yield the batches of a new epoch; one of unknown length goes on where the last one was left."""
        if self.has_begun and self.ends:
            self._end()
        self.has_begun = True
        while True:
            for outputs in self.iterator:
                if len(outputs) != 1:
                    raise DataMismatch(f"the DALI iterator has {len(outputs)} pipelines, one for each GPU; give it one")
                yield outputs[0]
            if self.ends:
                return
            self._end()

    def _end(self) -> None:
        """Pass over what is left of the epoch, since DALI begins a new one only at the end of another."""
        for _ in self.iterator:
            pass
        if getattr(self.iterator, "_auto_reset", "no") != "yes":
            self.iterator.reset()


def iterator_over(pipeline: Any, columns: Sequence[str] | None) -> Any:
    """Return an iterator that ends with the pipeline's only reader; its outputs have the names of the columns."""
    plugin = optional("nvidia.dali.plugin.pytorch", "a DALI pipeline as data")
    pipeline.build()
    readers = pipeline.reader_meta()
    if len(readers) != 1:
        raise DataMismatch(
            f"the DALI pipeline has {len(readers)} readers with a length, so its epoch has none; give "
            "DALIGenericIterator(pipeline, names, size=…, auto_reset=True) in its place"
        )
    name, about = next(iter(readers.items()))
    rows = int(about["epoch_size"])
    if not about["pad_last_batch"] and (about["number_of_shards"] > 1 or rows % pipeline.max_batch_size):
        raise DataMismatch(
            f"the reader {name!r} fills its last batch from the next epoch, so some of its {rows} rows would come "
            "twice in an epoch and others not at all; give the reader pad_last_batch=True"
        )
    names = list(columns) if columns else [f"output {number}" for number in range(len(pipeline.output_dtype()))]
    return plugin.DALIGenericIterator(
        [pipeline], names, reader_name=name, last_batch_policy=plugin.LastBatchPolicy.PARTIAL, auto_reset=True
    )


def rows_of_epoch(iterator: Any) -> int | None:
    """Return the rows that the iterator was told, or that its reader has; it has no public name for them."""
    whole, shards = getattr(iterator, "_size_no_pad", None), getattr(iterator, "_shards_num", None)
    size = getattr(iterator, "_size", -1)
    rows = int(whole) // int(shards) if whole and shards else int(size)
    return rows if rows > 0 else None
