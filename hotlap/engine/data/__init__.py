"""Data for the engine: sources that gather by index, streams, encoders, and a cache of preprocessed arrays."""

from __future__ import annotations

from hotlap.engine.data.cache import Cache, stored
from hotlap.engine.data.encoders import bits, grams_in, ngrams
from hotlap.engine.data.errors import DataError, DataMismatch, DataUnreadable, EmptySplit, NoDevice, PackageMissing
from hotlap.engine.data.hdf5 import Hdf5
from hotlap.engine.data.loaders import Loader
from hotlap.engine.data.placement import compact, resident
from hotlap.engine.data.readers import Arrays, ChainReader, Column, NpyFolder, Reader, ZipReader, load_all
from hotlap.engine.data.sources import ConcatSource, MapSource, Subset, Tensors, mapped, split, subset
from hotlap.engine.data.stream import Stream
from hotlap.engine.data.tables import Arrow, Csv, Folder, Parquet
from hotlap.engine.data.windows import CarriedWindows, Windows

__all__ = [
    "Arrays", "Arrow", "Cache", "CarriedWindows", "ChainReader", "Column", "ConcatSource", "Csv", "DataError",
    "DataMismatch", "DataUnreadable", "EmptySplit", "Folder", "Hdf5", "Loader", "MapSource", "NoDevice", "NpyFolder",
    "PackageMissing", "Parquet", "Reader", "Stream", "Subset", "Tensors", "Windows", "ZipReader", "bits", "compact",
    "grams_in", "load_all", "mapped", "ngrams", "resident", "split", "stored", "subset",
]  # fmt: skip
