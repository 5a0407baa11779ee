"""Data for the engine: sources that gather by index, streams, encoders, and a cache of what was preprocessed."""

from __future__ import annotations

from hotlap.engine.data.cache import Cache, stored
from hotlap.engine.data.encoders import bits, grams_in, ngrams
from hotlap.engine.data.errors import DataError, DataMismatch, DataUnreadable, EmptySplit, NoDevice, PackageMissing
from hotlap.engine.data.hdf5 import Hdf5
from hotlap.engine.data.placing import compact, resident
from hotlap.engine.data.readers import Arrays, Beside, Chained, Column, NpyFolder, Reader, load_all
from hotlap.engine.data.sources import Concatenated, Mapped, Subset, Tensors, mapped, split, subset
from hotlap.engine.data.stream import Stream
from hotlap.engine.data.tables import Arrow, Parquet
from hotlap.engine.data.windows import CarriedWindows, Windows

__all__ = [
    "Arrays", "Arrow", "Beside", "Cache", "CarriedWindows", "Chained", "Column", "Concatenated", "DataError",
    "DataMismatch", "DataUnreadable", "EmptySplit", "Hdf5", "Mapped", "NoDevice", "NpyFolder", "PackageMissing",
    "Parquet", "Reader", "Stream", "Subset", "Tensors", "Windows", "bits", "compact", "grams_in", "load_all", "mapped",
    "ngrams", "resident", "split", "stored", "subset",
]  # fmt: skip
