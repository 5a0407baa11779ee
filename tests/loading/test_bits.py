"""Checksums of memory."""

from __future__ import annotations

import threading

import numpy
import pytest

from hotlap.loading import bits
from hotlap.loading.contents import Contents, Memory

PIECE = bits.PIECE


def pieces_of(array: numpy.ndarray) -> list[memoryview]:
    whole = bits.bytes_of(array)
    return [whole[start : start + PIECE] for start in range(0, len(whole), PIECE)]


@pytest.fixture
def much() -> numpy.ndarray:
    words = 3 * bits.PIECES_EACH * PIECE // 8 + 1000  # the last piece is shorter
    return numpy.arange(words, dtype=numpy.uint64)


@pytest.fixture
def three_cores(answering) -> None:
    answering(bits, cores_of_a_rank=3)


def test_checksums_on_several_cores_are_those_of_one(much: numpy.ndarray, three_cores: None) -> None:
    pieces = pieces_of(much)
    assert bits.checksums(pieces, much) == list(map(bits.checksum, pieces))


def test_one_changed_byte_of_much_memory_shows(much: numpy.ndarray, three_cores: None) -> None:
    memory = Memory(lambda: much)
    assert not memory.differs()
    much.view(numpy.uint8)[-1] ^= 1
    assert memory.differs()


def test_no_thread_is_left_or_listed(much: numpy.ndarray, three_cores: None) -> None:
    before = threading.active_count()
    bits.checksums(pieces_of(much), much)
    assert threading.active_count() == before


def test_the_time_to_compare_much_memory_is_known_from_reading_it(much: numpy.ndarray, constants) -> None:
    constants("hotlap.loading.contents", LARGE=much.nbytes - 1)
    contents = Contents()
    contents.add(much)
    contents.settle()
    assert contents.seconds >= contents.parts[0].seconds > 0  # type: ignore[union-attr]
