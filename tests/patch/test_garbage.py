"""Nothing of ours leaves a reference cycle, which the program's `gc.collect()` would find and count."""

from __future__ import annotations

import gc
import importlib
import json
from contextlib import nullcontext

import numpy
import pytest
import torch

from hotlap.loading.bits import bytes_of
from hotlap.loading.pure import warnings_raised
from hotlap.patch.imports import when_imported
from hotlap.records.codec import to_json
from tests import observations


def fetch():
    with warnings_raised():
        pass


def save():
    to_json(observations.observation())


def view():
    for size in (3, 1000):
        assert bytes(bytes_of(torch.ones(size, dtype=torch.uint8))) == b"\1" * size
        assert bytes(bytes_of(numpy.ones(size, dtype=numpy.uint8))) == b"\1" * size


@pytest.mark.parametrize("ours", [fetch, save, view])
def test_leaves_no_cycle(ours):
    ours()  # what is made only once
    gc.collect()
    gc.disable()
    try:
        ours()
        assert gc.collect() == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("record", [{}, [], {"a": [], "b": {}}, [1, 2.5, True, None, "é\n"], {"a": {"b": [[1], {}]}}])
def test_a_record_is_laid_out_as_by_json_dumps(record):
    assert to_json(record) == json.dumps(record, indent=1, ensure_ascii=False) + "\n"


@pytest.mark.parametrize("state", ["usual", "disabled", "watched"])
@pytest.mark.parametrize("body", ["", "raise ImportError"])
def test_collections_wait_while_torch_is_imported(state, body, tmp_path, monkeypatch):
    """They do not where the program has anything to do with them, and afterwards all is as it was."""
    name = f"torch_{state}_{len(body)}"
    (tmp_path / f"{name}.py").write_text(f"import gc\nis_on = gc.isenabled()\ngc.seen = is_on\n{body}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(gc, "seen", None, raising=False)
    imported = []
    when_imported(name, imported.append)
    watches = [lambda phase, info: None] if state == "watched" else []
    gc.callbacks.extend(watches)
    if state == "disabled":
        gc.disable()
    try:
        with pytest.raises(ImportError) if body else nullcontext():
            importlib.import_module(name)
        assert gc.isenabled() == (state != "disabled")
    finally:
        gc.enable()
        for watch in watches:
            gc.callbacks.remove(watch)
    assert gc.seen == (state == "watched")
    assert len(imported) == (not body)
