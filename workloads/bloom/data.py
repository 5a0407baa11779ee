"""People and the Bloom filters of their names and birth dates, in one HDF5 file as the report stores them.

Every pair of neighbouring letters or digits of "givenname" + "surname" + "ddmmyyyy" sets HASHES bits out of
1024, found by double hashing with keyed MD5 and SHA-1. The filter is kept as a string of '0' and '1'.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import string
import sys
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import cache
import names

VERSION = 1
FILE_NAME = "people.h5"
TEXT_COLUMNS = ("given_name", "surname", "birth_date")
BITS = 1024
HASHES = 10
KEY = b"linkage of records"
ALPHABET = string.ascii_lowercase + string.digits
TWO_GRAMS = ["".join(pair) for pair in itertools.product(ALPHABET, repeat=2)]  # 1296
ROWS_AT_A_TIME = 20_000  # bounds the memory of encoding to about 100 MiB

Grams = NDArray[np.int64]


@dataclass(frozen=True)
class Population:
    records: int
    given_names: int
    surnames: int

    @property
    def bytes_needed(self) -> int:
        return self.records * (BITS + 2 * names.LONGEST + 8 + 12)


SIZES = {
    "tiny": Population(records=2_000, given_names=60, surnames=100),
    "small": Population(records=16_000, given_names=600, surnames=1_500),
    "report": Population(records=80_000, given_names=3_000, surnames=9_000),
}

# Host memory to train naively, a quarter added. Tiny and small: peak of all processes (PSS), measured on 2 cores.
# Report, reckoned: 21 kB a person, as between tiny and small, for 80,000 persons, and 1 GB allowed for CUDA.
MEMORY_MB = {"tiny": 460, "small": 820, "report": 3_800}


def default_folder(size: str, seed: int = 0, root: Path | None = None) -> Path:
    return cache.folder("bloom", size, seed, VERSION, root)


def ensure(size: str, seed: int = 0, root: Path | None = None) -> Path:
    """The folder with the data of this size and seed, generated when missing or damaged."""
    population = SIZES[size]

    def build(target: Path) -> None:
        write_people(target / FILE_NAME, population, seed)

    return cache.make_once(default_folder(size, seed, root), build, population.bytes_needed)


def write_people(path: Path, population: Population, seed: int) -> None:
    random = np.random.default_rng(seed)
    count = population.records
    given = names.draw_uneven(names.invent_names(names.GIVEN_NAMES, population.given_names, random), count, random)
    family = names.draw_uneven(names.invent_names(names.SURNAMES, population.surnames, random), count, random)
    born = names.draw_birth_dates(count, random)
    columns: dict[str, np.ndarray] = dict(zip(TEXT_COLUMNS, (given, family, born), strict=True))
    columns["bloomfilter"] = bloom_filters(joined_text(given, family, born))
    columns["uid"] = np.arange(count)
    with h5py.File(path, "w", track_order=True) as file:
        for name, values in columns.items():
            file.create_dataset(name, data=values, track_times=False)


def joined_text(*columns: NDArray[np.bytes_]) -> NDArray[np.bytes_]:
    text = columns[0]
    for column in columns[1:]:
        text = np.char.add(text, column)
    return text


def bloom_filters(text: NDArray[np.bytes_]) -> NDArray[np.bytes_]:
    """One string of BITS characters '0' and '1' for every text."""
    positions = bit_positions()
    parts = [filled_bits(text[i : i + ROWS_AT_A_TIME], positions) for i in range(0, len(text), ROWS_AT_A_TIME)]
    return np.concatenate(parts)


def filled_bits(text: NDArray[np.bytes_], positions: NDArray[np.int64]) -> NDArray[np.bytes_]:
    rows, grams = two_gram_numbers(text)
    bits = np.full((len(text), BITS), ord("0"), dtype=np.uint8)
    bits[rows[:, None], positions[grams]] = ord("1")
    return bits.view(f"S{BITS}").reshape(-1)


def two_gram_numbers(text: NDArray[np.bytes_]) -> tuple[Grams, Grams]:
    """For every two-gram of every text: the text's row and the two-gram's place in TWO_GRAMS."""
    letters = np.ascontiguousarray(text).view(np.uint8).reshape(len(text), -1)
    place = np.full(256, -1, dtype=np.int64)
    place[np.frombuffer(ALPHABET.encode(), dtype=np.uint8)] = np.arange(len(ALPHABET))
    codes = place[letters]
    rows, starts = np.nonzero((codes[:, :-1] >= 0) & (codes[:, 1:] >= 0))
    return rows, codes[rows, starts] * len(ALPHABET) + codes[rows, starts + 1]


def bit_positions() -> NDArray[np.int64]:
    """[two-gram, hash]: the bits each two-gram sets."""
    return np.array([gram_bits(gram) for gram in TWO_GRAMS])


def gram_bits(gram: str) -> list[int]:
    first = int.from_bytes(hmac.new(KEY, gram.encode(), hashlib.md5).digest(), "big")
    second = int.from_bytes(hmac.new(KEY, gram.encode(), hashlib.sha1).digest(), "big")
    return [(first + number * second) % BITS for number in range(HASHES)]


if __name__ == "__main__":
    sys.exit(cache.command_line(ensure, tuple(SIZES)))
