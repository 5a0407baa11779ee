"""Programs built from habits of real ones give the same results with hotlap as without."""

from __future__ import annotations

import contextlib
import importlib
import io
import multiprocessing
import os
import pickle
import re
import sys
import traceback
from types import ModuleType

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import hotlap
from hotlap.loading import state
from tests.loading.habits import recipes

SEED, PROGRAMS, CHUNKS = 26, 160, 8
LEAST_RESIDENT = 20 // CHUNKS  # of each chunk's programs


NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")


@pytest.fixture(autouse=True, scope="module")
def all_is_imported():
    """Runs a first training, so that imports happen once here and not in every fork."""
    for name in ("h5py", "pandas", "PIL.Image"):
        importlib.import_module(name)
    with hotlap.enable():
        model = torch.nn.Linear(2, 2)
        for (rows,) in DataLoader(TensorDataset(torch.zeros(4, 2)), batch_size=2):
            model(rows).sum().backward()
            torch.optim.SGD(model.parameters(), lr=0.1).step()


@pytest.mark.parametrize("chunk", [0, *(pytest.param(chunk, marks=pytest.mark.thorough) for chunk in range(1, CHUNKS))])
def test_generated_programs_give_the_same_results(chunk, tmp_path):
    resident = 0
    for number, recipe in enumerate(recipes(SEED, PROGRAMS)[chunk::CHUNKS]):
        plain, _ = ran(recipe, tmp_path / f"{number}-plain", None)
        ours, applied = ran(recipe, tmp_path / f"{number}-exact", "exact")
        assert ours == plain, recipe
        resident += "resident-data" in applied
    assert resident >= LEAST_RESIDENT


def test_generated_programs_agree_where_rounding_is_allowed(tmp_path):
    """The results agree except for the last digits."""
    for number, recipe in enumerate(recipes(SEED + 1, 8)):
        plain, _ = ran(recipe, tmp_path / f"{number}-plain", None)
        ours, applied = ran(recipe, tmp_path / f"{number}-rounding", "rounding")
        assert NUMBER.sub("", ours) == NUMBER.sub("", plain), recipe
        numbers = [[float(match) for match in NUMBER.findall(text)] for text in (ours, plain)]
        assert numbers[0] == pytest.approx(numbers[1], rel=1e-4, abs=1e-6), recipe
        assert "fused-optimizer" in applied


def ran(recipe, folder, risk):
    """Runs in a fork; returns what the program returns, prints or fails with, and the names of the applied entries.

    gc-pauses is left out, because its first collection takes longer here than the program.
    """
    folder.mkdir()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reading)
            with os.fdopen(writing, "wb") as file:
                pickle.dump(run_here(recipe.source(), folder, risk), file)
        finally:
            for worker in multiprocessing.active_children():  # else it holds the pipe until it misses its parent
                worker.kill()
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        output = file.read()
    os.waitpid(child, 0)
    return pickle.loads(output)


def run_here(source, folder, risk):
    os.chdir(folder)
    torch.set_num_threads(1)
    state.ALWAYS = 60.0  # a busy machine is no reason to refuse
    path = folder / "program.py"
    path.write_text(source)
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__file__ = str(path)
    printed, applied = io.StringIO(), []
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        try:
            exec(compile(source, path, "exec", dont_inherit=True), vars(main))
            ours = hotlap.enable(risk=risk, without=["gc-pauses"], at_once=True) if risk else contextlib.nullcontext()
            with ours as enabled:
                result = repr(main.run())
            applied = [outcome.name for outcome in enabled.outcomes if outcome.status == "applied"] if risk else []
        except Exception as error:
            result = "".join(traceback.format_exception_only(error)) + repr(vars(main).get("OUT"))
    return result + printed.getvalue(), applied
