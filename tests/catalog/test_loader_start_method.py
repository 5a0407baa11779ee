"""loader-start-method applies where forking is unsafe, and never where the script or dataset does not allow it."""

import multiprocessing
import subprocess
import sys
import types
from multiprocessing import forkserver

import pytest
import torch
from catalog.loading import Random, Rows, applied, outcome, shuffled, train
from harness import HOTLAP, environment
from observations import on_cuda

from hotlap.catalog import entries
from hotlap.catalog.loader_start_method.apply import CLEAN, found, import_torch_once
from hotlap.runtime.decline import EntryDeclined
from hotlap.runtime.loader_arguments import LoaderArguments
from hotlap.runtime.main_script import why_not_twice

NAME = "loader-start-method"
GUARDED = """
'''A script.'''
import torch
SIZE = 3
def main():
    pass
if __name__ == "__main__":
    main()
"""


def script(tmp_path, text):
    path = tmp_path / "train.py"
    path.write_text(text)
    module = types.ModuleType("__main__")
    module.__file__ = str(path)
    return module


def test_accepts_a_guarded_script(tmp_path):
    assert why_not_twice(script(tmp_path, GUARDED)) is None
    assert why_not_twice(types.ModuleType("__main__")) is None, "a notebook has no script"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import torch\nmain()\n", "train.py has no `if __name__"),
        (GUARDED + "print('done')\n", "run line 9 of train.py again"),
        ("for _ in range(3):\n    pass\n" + GUARDED, "run line 1 of train.py again"),
        ("if (", "cannot be read"),
    ],
)
def test_rejects_scripts_that_are_unsafe_to_import_again(text, said, tmp_path):
    assert said in why_not_twice(script(tmp_path, text))


def test_notices_training_outside_the_guard(tmp_path):
    module = script(tmp_path, GUARDED.replace("SIZE = 3", "SIZE = ask()"))
    said = []
    vars(module)["ask"] = lambda: said.append(why_not_twice(module))
    exec(compile((tmp_path / "train.py").read_text(), module.__file__, "exec"), vars(module))
    assert said == ["every worker would run line 4 of train.py again"]


class Site:
    def __init__(self, cuda):
        self.torch = types.SimpleNamespace(cuda=types.SimpleNamespace(is_initialized=lambda: cuda))


@pytest.mark.parametrize(("site", "method"), [(Site(cuda=False), None), (Site(cuda=True), CLEAN)])
def test_avoids_fork_only_where_it_is_unsafe(site, method):
    arguments = LoaderArguments(torch, {"dataset": Rows(), "num_workers": 1, "multiprocessing_context": "fork"})
    if method:
        assert found(site, arguments) == method
    else:
        with pytest.raises(EntryDeclined, match="forking is safe here"):
            found(site, arguments)


class Local(Rows):
    def __reduce__(self):
        raise TypeError("not to be sent")


@pytest.mark.parametrize(
    ("choice", "dataset", "options", "status", "said"),
    [
        (f"{NAME}=spawn", Rows, {}, "no effect", "no loader starts workers"),
        (f"{NAME}=spawn", Rows, {"num_workers": 1, "multiprocessing_context": "fork"}, "no effect", "already names"),
        (NAME, Rows, {"num_workers": 1}, "no effect", "forking is safe"),
        (f"{NAME}=fork", Rows, {"num_workers": 1}, "no effect", "already started by fork"),
        (f"{NAME}=spawn", Local, {"num_workers": 1}, "refused", "TypeError: not to be sent"),
        (f"{NAME}=spawn", lambda: Random("numpy"), {"num_workers": 1}, "refused", "draws random numbers"),
    ],
)
def test_states_why_it_does_not_apply(choice, dataset, options, status, said, answering):
    answering(multiprocessing, get_start_method="fork")
    answering(sys.modules[f"hotlap.catalog.{NAME.replace('-', '_')}.apply"], why_not_twice=None)
    with applied(choice) as running:
        next(iter(shuffled(dataset(), **options)))
        assert (outcome(running)[0], said in outcome(running)[1]) == (status, True), outcome(running)


def test_does_not_try_a_loader_that_starts_no_workers(monkeypatch):
    module = sys.modules[f"hotlap.catalog.{NAME.replace('-', '_')}.apply"]
    monkeypatch.setattr(module, "_check", lambda *_: pytest.fail("it takes seconds"))
    with applied(f"{NAME}=spawn") as running:
        shuffled(Rows(), num_workers=2)
        assert outcome(running)[0] == "no effect"


def test_closing_restores_the_loader(answering):
    module = sys.modules[f"hotlap.catalog.{NAME.replace('-', '_')}.apply"]
    answering(module, _check=None)
    with applied(f"{NAME}=fork") as running:
        loader = shuffled(Rows(), num_workers=1)
        next(iter(loader))
        assert loader.multiprocessing_context.get_start_method() == "fork"
        assert outcome(running) == ("applied", "workers of Rows started by fork")
    assert loader.multiprocessing_context is None


PROGRAM = """
import torch
from catalog.loading import shuffled, train

if __name__ == "__main__":
    loader = shuffled(num_workers=1)
    print([*train(loader, epochs=1)[0], *torch.rand(2).tolist()])
"""


@pytest.mark.thorough
def test_forkserver_workers_give_the_same_losses(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    command = [sys.executable, "train.py"]
    path = environment(PYTHONPATH=str(__file__).rpartition("/catalog/")[0])
    alone = [*train(shuffled(num_workers=1), epochs=1)[0], *torch.rand(2).tolist()]
    flags = ["--with", f"{NAME}=forkserver"]
    whole = [*HOTLAP, "run", "--run-dir", str(tmp_path / "kept"), *flags, *command]
    ours = subprocess.run(whole, cwd=tmp_path, env=path, capture_output=True, text=True, timeout=600)
    assert ours.returncode == 0, ours.stderr
    assert ours.stdout == f"{alone}\n"
    assert "applied: loader-start-method (workers of Rows started by forkserver)" in ours.stderr


@pytest.mark.parametrize(
    ("pid", "said", "then"),
    [
        (None, ["__main__"], ["__main__", "torch.utils.data"]),
        (None, ["pandas"], ["pandas"]),
        (4711, ["__main__"], ["__main__"]),
    ],
)
def test_preloads_torch_unless_the_program_sets_its_own_preload(pid, said, then, monkeypatch):
    server = forkserver._forkserver
    monkeypatch.setattr(server, "_forkserver_pid", pid)
    monkeypatch.setattr(server, "_preload_modules", said)
    import_torch_once()
    assert server._preload_modules == then


def test_promises_no_gain():
    assert entries()[NAME].detect(on_cuda()) is None
