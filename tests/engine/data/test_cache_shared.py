"""A cache that several processes fill, read and prune at the same time returns only complete entries."""

import logging
import multiprocessing
import os
import random
import shutil
import threading
import time

import numpy as np
import pytest

from hotlap.engine.data import Arrays, Cache, stored
from hotlap.engine.data import cache as module

FORK = multiprocessing.get_context("fork")


def make(number):
    return {"a": np.full(5000, number), "b": np.arange(number + 1)}


def cached(cache, number=1):
    return cache.arrays(make, arguments={"number": number})


def is_right(arrays, number=1):
    return sorted(arrays) == ["a", "b"] and (arrays["a"] == number).all() and len(arrays["b"]) == number + 1


def only_entry(cache):
    (path,) = cache.folder.glob("*/entry.json")
    return path.parent


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


@pytest.fixture
def nothing_said(caplog):
    with caplog.at_level(logging.WARNING, "hotlap.engine"):
        yield
    assert caplog.text == ""


def ask_often(folder, seed, results):
    logging.getLogger("hotlap.engine").addHandler(Collected(results))
    cache, chosen = Cache(folder, limit_bytes=60_000), random.Random(seed)
    for _ in range(40):
        number = chosen.randrange(4)
        try:
            arrays = cached(cache, number)
            results.put("right" if is_right(arrays, number) else f"wrong {sorted(arrays)}")
        except OSError as error:
            results.put(f"raised {error}")
    results.put(None)


class Collected(logging.Handler):
    def __init__(self, results):
        super().__init__()
        self.results = results

    def emit(self, record):
        self.results.put(record.getMessage())


def test_processes_that_evict_each_others_entries_still_get_the_right_arrays(tmp_path):
    results = FORK.Queue()
    processes = [FORK.Process(target=ask_often, args=(tmp_path, seed, results)) for seed in range(3)]
    for process in processes:
        process.start()
    found, ended = set(), 0
    while ended < len(processes):
        result = results.get(timeout=60)
        ended += result is None
        found.add(result)
    for process in processes:
        process.join()
    assert found == {"right", None}


def test_an_entry_being_renamed_into_place_is_not_removed_by_another_process(cache, monkeypatch, nothing_said):
    sealed = module.seal

    def seal_and_prune(folder):
        names = sealed(folder)
        Cache(cache.folder, limit_bytes=0).prune()
        return names

    monkeypatch.setattr(module, "seal", seal_and_prune)
    assert is_right(cached(cache))
    assert only_entry(cache).suffix == ""


def test_an_entry_removed_right_after_lookup_is_still_read(cache, monkeypatch, nothing_said):
    cached(cache)
    monkeypatch.setattr(os, "utime", lambda path: shutil.rmtree(path.parent))
    assert is_right(cached(cache))
    assert list(cache.folder.glob("*/entry.json")) == []


def test_an_entry_removed_while_it_is_read_is_made_again(cache, monkeypatch, nothing_said):
    cached(cache)
    entry, of_file = only_entry(cache), module.checksum

    def removed_first(path):
        monkeypatch.setattr(module, "checksum", of_file)
        shutil.rmtree(entry)
        return of_file(path)

    monkeypatch.setattr(module, "checksum", removed_first)
    assert is_right(cached(cache))
    assert only_entry(cache) == entry


def test_an_entry_replaced_while_it_is_read_is_read_again(cache, monkeypatch):
    cached(cache)
    entry, of_file = only_entry(cache), module.checksum
    content = bytearray((entry / "a.npy").read_bytes())
    content[-1] ^= 1
    shutil.copytree(entry, entry.with_suffix(".good"))
    (entry / "a.npy").write_bytes(content)

    def replaced_first(path):
        monkeypatch.setattr(module, "checksum", of_file)
        shutil.rmtree(entry)
        entry.with_suffix(".good").rename(entry)
        (entry / "entry.json").write_text((entry / "entry.json").read_text().replace('"made": ', '"made": 1'))
        return of_file(path)

    monkeypatch.setattr(module, "checksum", replaced_first)
    assert is_right(cached(cache))


def test_stored_rows_stay_readable_when_their_entry_is_removed(cache, tmp_path):
    (tmp_path / "input").write_text("v1")
    rows = stored(Arrays(np.arange(1000)), cache, [tmp_path / "input"])
    Cache(cache.folder, limit_bytes=0).prune()
    assert list(cache.folder.iterdir()) == []
    out = np.empty(2, dtype=np.int64)
    rows.read(np.array([7, 999]), [out])
    assert out.tolist() == [7, 999]


def test_a_stray_file_in_an_entry_is_ignored(cache):
    cached(cache)
    np.save(only_entry(cache) / "stray.npy", np.zeros(3))
    assert is_right(cached(cache))


def test_an_entry_whose_timestamp_cannot_be_updated_is_still_read(cache, monkeypatch, answering, nothing_said):
    cached(cache)
    answering(os, utime=PermissionError("not yours"))
    monkeypatch.setattr(module, "seal", None)  # not made again
    assert is_right(cached(cache))


def test_pruning_clears_leftovers_but_not_entries_being_written(cache):
    (cache.folder / "left.99999.tmp").mkdir(parents=True)
    (cache.folder / "busy.99999.tmp").mkdir()
    with cache._locked("busy"):
        cache.prune()
        assert sorted(path.name for path in cache.folder.glob("*.tmp")) == ["busy.99999.tmp"]


def test_entries_that_vanish_while_being_counted_are_left_out(cache, monkeypatch):
    for number in (1, 2):
        cached(cache, number)
    entries = sorted(cache.folder.glob("*/entry.json"))
    monkeypatch.setattr(type(cache.folder), "glob", lambda folder, pattern: [*entries, folder / "gone" / "entry.json"])
    shutil.rmtree(entries[0].parent)
    assert list(module.sizes_by_use(cache.folder)) == [entries[1].parent.name]


def test_a_process_forked_under_the_lock_does_not_keep_it(cache):
    taken = threading.Event()

    def wait():
        os.close(module.lock_file(cache.folder / "key.lock", wait=True))
        taken.set()

    with cache._locked("key"):
        child = FORK.Process(target=time.sleep, args=(60,))
        child.start()
        threading.Thread(target=wait, daemon=True).start()
        time.sleep(0.1)  # until it waits
    try:
        assert taken.wait(10)
    finally:
        child.kill()
        child.join()
