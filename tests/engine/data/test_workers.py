"""The number of readers follows the memory; threads never exceed the cores, nor batches a quarter of the memory."""

import pytest

from hotlap.engine.data.errors import DataMismatch
from hotlap.engine.data.memory import GIB, in_words
from hotlap.engine.data.workers import Machine, this_machine, workers_for
from hotlap.machine import total_bytes

MIB = 2**20


@pytest.mark.parametrize(
    ("kind", "memory", "readers"),
    [
        ("sequence", 4, 0), ("sequence", 12, 2), ("sequence", 64, 4),
        ("table", 4, 2), ("table", 12, 4), ("table", 64, 8),
    ],
)  # fmt: skip
def test_the_tiers_of_the_reports_on_a_machine_with_many_cores(kind, memory, readers):
    assert workers_for(kind, MIB, Machine(cores=32, memory=memory * GIB, gpu=True)).readers == readers


@pytest.mark.parametrize("cores", [1, 2, 3, 8, 64])
@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("kind", ["sequence", "table", "image"])
def test_readers_and_compute_threads_never_exceed_the_cores(cores, gpu, kind):
    chosen = workers_for(kind, MIB, Machine(cores, 64 * GIB, gpu))
    assert chosen.readers + chosen.compute_threads <= max(cores, 1)
    assert chosen.compute_threads >= 1


def test_large_batches_reduce_the_readers():
    machine = Machine(cores=32, memory=16 * GIB, gpu=True)
    large = workers_for("image", GIB, machine)
    assert large.readers == 2
    assert large.ahead <= 4
    assert workers_for("image", 3 * GIB, machine).readers == 0
    assert "by the size of a batch (1.0 GiB)" in large.why


def test_rejects_an_unknown_kind():
    with pytest.raises(DataMismatch, match="use one of sequence, table, image"):
        workers_for("sound", MIB)


def test_this_machine_is_read_from_the_system():
    machine = this_machine()
    assert machine.cores >= 1
    assert machine.memory == total_bytes()
    assert in_words(3 * 2**19) == "1.5 MiB"
