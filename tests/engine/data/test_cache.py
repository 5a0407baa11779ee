"""The cache returns what was computed, recomputes what changed or is damaged, and is safe under concurrency."""

import multiprocessing
import os
import threading
import time
from argparse import Namespace
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from hotlap.engine.data import Arrays, Cache, DataError, DataMismatch, DataUnreadable, stored
from hotlap.engine.data.keys import constant_text, key_of

CALLS = deque()  # a list would be part of the key


def doubled(path, factor=2):
    CALLS.append(factor)
    return {"numbers": np.array([int(word) * factor for word in Path(path).read_text().split()])}


@pytest.fixture
def text(tmp_path):
    CALLS.clear()
    (tmp_path / "words.txt").write_text("1 2 3")
    return tmp_path / "words.txt"


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


def made(cache, text, factor=2, **options):
    return cache.arrays(doubled, inputs=[text], arguments={"path": str(text), "factor": factor}, **options)["numbers"]


def test_a_cached_result_is_read_the_second_time(cache, text):
    assert made(cache, text).tolist() == [2, 4, 6]
    again = made(cache, text)
    assert again.tolist() == [2, 4, 6]
    assert list(CALLS) == [2]
    torch.from_numpy(again)[0] = 9  # the array has its own memory: the file stays unchanged
    assert made(cache, text).tolist() == [2, 4, 6]


def test_changed_content_arguments_or_version_are_computed_again(cache, text):
    made(cache, text)
    made(cache, text, factor=3)
    made(cache, text, version="2")
    text.write_text("1 2 4")
    assert made(cache, text).tolist() == [2, 4, 8]
    assert list(CALLS) == [2, 3, 2, 2]


def test_keys_follow_the_content_and_sample_keys_also_the_modification_time(tmp_path):
    first, second = tmp_path / "one", tmp_path / "two"
    for path in (first, second):
        path.write_bytes(b"x" * 3_000_000)
        os.utime(path, (5, 5))

    def key(path, identity):
        return key_of(doubled, [path], {}, "", identity)

    assert key(first, "content") == key(second, "content")
    assert key(first, "sample") == key(second, "sample")
    os.utime(second, (6, 6))
    assert key(first, "content") == key(second, "content")
    assert key(first, "sample") != key(second, "sample")
    with pytest.raises(DataError, match="use 'content' or 'sample'"):
        key(first, "guess")


def test_the_key_of_a_folder_follows_names_and_content(tmp_path):
    (tmp_path / "a").write_text("1")
    before = key_of(doubled, [tmp_path], {}, "", "content")
    (tmp_path / "a").rename(tmp_path / "b")
    assert key_of(doubled, [tmp_path], {}, "", "content") != before


@dataclass
class Options:
    low: int


def test_the_type_of_every_argument_is_part_of_the_key():
    values = [
        1, 1.0, True, None, "1", b"1", [1], [[1]], {"a": 1}, {"a": 2}, Options(1), Options(2), {1}, np.int64(1),
        np.array([1]), np.array([1.0]), np.array([[1]]), torch.tensor([2]), Path("1"), torch.float32,
        torch.zeros(1, dtype=torch.int16), torch.zeros(1, dtype=torch.bfloat16), Namespace(low=1), Namespace(low=2),
    ]  # fmt: skip
    keys = {key_of(doubled, [], {"value": value}, "", "content") for value in values}
    assert len(keys) == len(values)
    for refused, message in ((object(), "type object"), (torch.eye(2).to_sparse(), "torch.sparse_coo,")):
        with pytest.raises(DataError, match=f"{message} cannot be part"):
            key_of(doubled, [], {"value": refused}, "", "content")


def test_another_function_has_another_key_even_without_source():
    spaces = [{}, {}]
    exec("def make(): return {'a': 1}", spaces[0])
    exec("def make(): return {'a': 2}", spaces[1])
    assert key_of(spaces[0]["make"], [], {}, "", "content") != key_of(spaces[1]["make"], [], {}, "", "content")


def test_closure_variables_are_part_of_the_key(cache):
    def maker(size, helper):
        return lambda low=0: {"a": helper(np.arange(low, size))}

    def twice(values):
        return values * 2

    assert cache.arrays(maker(2, twice))["a"].tolist() == [0, 2]
    assert cache.arrays(maker(3, twice))["a"].tolist() == [0, 2, 4]
    assert cache.arrays(maker(3, lambda values: values * 3))["a"].tolist() == [0, 3, 6]
    with pytest.raises(DataError, match="type object cannot be part"):
        cache.arrays(maker(object(), twice))
    with pytest.raises(DataError, match="depends on its object"):
        cache.arrays(cache.prune)


SCRIPT = """
import numpy as np
def helper(): return 1
def make():
    return {"a": np.array([value * SCALE for value in NAMES] + [helper(), SETTINGS.low])}
def nested():
    return {"a": np.array([(lambda: SCALE)()])}
def attribute():
    return {"a": np.array([np.SCALE])}
"""


def script(**variables):
    space = {"SCALE": 2, "NAMES": [1, 2], "SETTINGS": Namespace(low=1), "other": 5, **variables}
    exec(SCRIPT, space)
    return space


def test_plain_module_variables_that_a_function_reads_are_part_of_the_key(cache):
    def keys(**variables):
        space = script(**variables)
        return [key_of(space[name], [], {}, "", "content") for name in ("make", "nested", "attribute")]

    usual = keys()
    changes = {name: [now == was for now, was in zip(keys(**{name: given}), usual, strict=True)] for name, given in {
        "SCALE": 3, "NAMES": [1, 3], "SETTINGS": Namespace(low=2), "other": 6
    }.items()}  # fmt: skip
    assert changes == {
        "SCALE": [False, False, True],
        "NAMES": [False, True, True],
        "SETTINGS": [False, True, True],
        "other": [True, True, True],
    }
    assert cache.arrays(script()["make"])["a"].tolist() == [2, 4, 1, 1]
    assert cache.arrays(script(SCALE=3)["make"])["a"].tolist() == [3, 6, 1, 1]


def test_two_lambdas_on_one_line_have_different_keys(cache):
    zeros, ones = (lambda: {"a": np.zeros(1)}), (lambda: {"a": np.ones(1)})
    assert [cache.arrays(make)["a"].tolist() for make in (zeros, ones)] == [[0.0], [1.0]]


def test_the_order_of_a_set_is_not_part_of_the_key():
    ascending, descending = frozenset([0, 8]), frozenset([8, 0])
    assert list(ascending) != list(descending)
    assert constant_text((ascending,)) == constant_text((descending,))


def test_rejects_a_function_that_does_not_return_a_dict(cache):
    with pytest.raises(DataMismatch, match=r"returned a value of type ndarray; return a dict of arrays"):
        cache.arrays(lambda: np.zeros(3))


def test_names_a_missing_input(cache, tmp_path):
    with pytest.raises(DataUnreadable, match=r"gone.txt: there is no such file"):
        made(cache, tmp_path / "gone.txt")


@pytest.mark.parametrize("damage", ["cut", "bit", "no entry", "half an entry", "no file"])
def test_a_damaged_entry_is_made_again(cache, text, damage):
    made(cache, text)
    (entry,) = cache.folder.glob("*/entry.json")
    file = entry.parent / "numbers.npy"
    content = bytearray(file.read_bytes())
    if damage == "cut":
        file.write_bytes(content[:-3])
    elif damage == "bit":
        content[-1] ^= 1
        file.write_bytes(content)
    elif damage == "no entry":
        entry.unlink()
    elif damage == "half an entry":
        entry.write_text(entry.read_text()[:20])
    else:
        file.unlink()
    assert made(cache, text).tolist() == [2, 4, 6]
    assert list(CALLS) == [2, 2]
    made(cache, text)
    assert list(CALLS) == [2, 2]


def test_a_function_that_fails_leaves_nothing_behind(cache, text):
    text.write_text("1 two 3")
    with pytest.raises(ValueError, match="two"):
        made(cache, text)
    assert list(cache.folder.iterdir()) == []


def test_clears_the_leftovers_of_a_killed_process(cache, text):
    made(cache, text)
    (entry,) = cache.folder.glob("*/entry.json")
    (cache.folder / f"{entry.parent.name}.99999.tmp").mkdir()
    entry.unlink()
    made(cache, text)
    assert [path.name for path in cache.folder.iterdir()] == [entry.parent.name]


def test_concurrent_threads_compute_an_entry_once(cache, text):
    results = []
    CALLS.clear()

    def make():
        CALLS.append("slow")
        time.sleep(0.05)
        return {"a": np.arange(3)}

    threads = [threading.Thread(target=lambda: results.append(cache.arrays(make)["a"].tolist())) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[0, 1, 2]] * 6
    assert list(CALLS) == ["slow"]


def hold(folder, key, held):
    def fill(target):
        held.set()
        time.sleep(60)

    Cache(folder).entry(key, fill, "r")


def test_the_lock_of_a_killed_process_blocks_nobody(tmp_path):
    context = multiprocessing.get_context("fork")
    held = context.Event()
    process = context.Process(target=hold, args=(tmp_path, "key", held))
    process.start()
    assert held.wait(20)
    process.kill()
    process.join()
    arrays = Cache(tmp_path).entry("key", lambda target: np.save(target / "a.npy", np.arange(3)), "r")
    assert arrays["a"].tolist() == [0, 1, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


def test_evicts_the_least_recently_used_entries(tmp_path, text):
    cache = Cache(tmp_path / "cache", limit_bytes=1)
    cache.limit_bytes = 10**9
    for factor in (1, 2, 3):
        made(cache, text, factor=factor)
        for number, entry in enumerate(
            sorted(cache.folder.glob("*/entry.json"), key=lambda path: path.stat().st_mtime)
        ):
            os.utime(entry, (100 + number, 100 + number))
    made(cache, text, factor=1)  # used now
    entry_bytes = sum(file.stat().st_size for file in next(cache.folder.iterdir()).iterdir())
    cache.limit_bytes = int(2.5 * entry_bytes)
    assert len(cache.prune()) == 1
    CALLS.clear()
    made(cache, text, factor=1)
    made(cache, text, factor=3)
    assert list(CALLS) == []
    made(cache, text, factor=2)
    assert list(CALLS) == [2]


def test_an_unwritable_folder_costs_the_cache_not_the_training(tmp_path, text, caplog):
    (tmp_path / "file").write_text("not a folder")
    assert made(Cache(tmp_path / "file" / "cache"), text).tolist() == [2, 4, 6]
    assert "cannot write to the cache" in caplog.text
    assert list(CALLS) == [2]


def test_a_full_disk_does_not_lose_the_computed_arrays(cache, text, answering, caplog):
    answering(np, save=OSError(28, "No space left on device"))
    assert made(cache, text).tolist() == [2, 4, 6]
    assert "No space left" in caplog.text
    assert list(CALLS) == [2]
    assert list(cache.folder.iterdir()) == []


def test_errors_of_the_function_propagate_unchanged(cache):
    def make():
        raise FileNotFoundError("model.bin")

    with pytest.raises(FileNotFoundError, match=r"model.bin"):
        cache.arrays(make)


def test_rejects_python_objects_and_invalid_names(cache):
    with pytest.raises(DataMismatch, match="Python objects"):
        cache.arrays(lambda: {"a": np.array([{}])})
    with pytest.raises(DataMismatch, match="not a valid name"):
        cache.arrays(lambda: {"../a": np.arange(2)})


def test_data_that_is_slow_to_decode_is_stored_once_as_memory_maps(cache, tmp_path):
    (tmp_path / "input").write_text("v1")
    table, labels = np.random.default_rng(0).random((1000, 7)), np.arange(1000)
    reader = Arrays(table, labels)
    arrays = stored(reader, cache, [tmp_path / "input"])
    assert all(isinstance(array, np.memmap) for array in arrays.arrays)
    assert np.array_equal(arrays.arrays[0], table)
    assert np.array_equal(arrays.arrays[1], labels)
    reader.read = None  # not read again
    assert stored(reader, cache, [tmp_path / "input"]).rows == 1000
