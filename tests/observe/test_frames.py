"""A cost is attributed to a line of the user's code."""

from __future__ import annotations

import functools
import sys
import sysconfig
from pathlib import Path
from types import FrameType

import pytest
import torch

from hotlap.observe import frames
from hotlap.observe.frames import kind_of, place_of_function, short_library_place, user_frame
from hotlap.records.observation import CodeLine

LIBRARY, INSTALLED, USER = 0, 1, 2
SITE = "/env/lib/python3.11/site-packages"


@pytest.mark.parametrize(
    ("filename", "kind"),
    [
        ("/home/ann/project/train.py", USER),
        ("/home/ann/torch/train.py", USER),
        ("train.py", USER),
        (f"{SITE}/torch/optim/adam.py", LIBRARY),
        (f"{SITE}/lightning/pytorch/trainer.py", LIBRARY),
        (f"{SITE}/tqdm/std.py", LIBRARY),
        (f"{SITE}/hotlap/cli/profile.py", LIBRARY),
        ("/usr/lib/python3/dist-packages/numpy/core.py", LIBRARY),
        (f"{SITE}/annas_trainer/loop.py", INSTALLED),
        (f"{SITE}/single_file.py", INSTALLED),
        (f"{sysconfig.get_path('stdlib')}/json/decoder.py", LIBRARY),
        ("<frozen importlib._bootstrap>", LIBRARY),
        ("<string>", LIBRARY),
        ("/tmp/torchinductor_ann/l4/cl4oa4foliwvv.py", LIBRARY),
        (str(Path(frames.__file__)), LIBRARY),
    ],
)
def test_a_file_is_the_users_or_a_librarys(filename, kind):
    assert kind_of(filename) == kind


def test_a_project_that_contains_its_environment_is_still_the_users():
    assert kind_of("/home/ann/project/.venv/lib/python3.11/site-packages/torch/nn/linear.py") == LIBRARY
    assert kind_of("/home/ann/project/model.py") == USER


def test_a_project_next_to_hotlap_with_a_longer_name_is_the_users():
    """A shared prefix of two paths is not a shared folder."""
    assert kind_of(str(Path(frames.__file__).parents[1]) + "_experiments/train.py") == USER


def called_from(*files: str) -> FrameType:
    """The innermost frame of a chain of calls through these files, outermost first."""
    code = "import sys\ndef call(rest):\n    return rest[0](rest[1:]) if rest else sys._getframe()\n"
    calls = []
    for file in files:
        space: dict[str, object] = {}
        exec(compile(code, file, "exec"), space)
        calls.append(space["call"])
    return calls[0](calls[1:])


def test_the_innermost_user_frame_is_blamed():
    frame = called_from("/p/train.py", "/p/model.py", f"{SITE}/torch/a.py", f"{SITE}/torch/b.py")
    found = user_frame(frame)
    assert found is not None
    assert found.f_code.co_filename == "/p/model.py"


def test_a_user_frame_wins_over_an_installed_frame_further_in():
    found = user_frame(called_from("/p/train.py", f"{SITE}/annas_trainer/loop.py", f"{SITE}/torch/a.py"))
    assert found is not None
    assert found.f_code.co_filename == "/p/train.py"


def without_pytest(frame: FrameType, monkeypatch) -> None:
    """Make every frame above a library frame, as in a program that is installed as a whole."""
    above = frame
    while above is not None:
        file = above.f_code.co_filename
        if not file.startswith(SITE):
            monkeypatch.setitem(frames._kinds, file, LIBRARY)
        above = above.f_back


def test_a_program_installed_as_a_whole_is_blamed_on_its_innermost_frame(monkeypatch):
    frame = called_from(f"{SITE}/annas_trainer/cli.py", f"{SITE}/annas_trainer/loop.py", f"{SITE}/torch/a.py")
    without_pytest(frame, monkeypatch)
    found = user_frame(frame)
    assert found is not None
    assert found.f_code.co_filename == f"{SITE}/annas_trainer/loop.py"


def test_with_library_frames_only_the_outermost_is_blamed(monkeypatch):
    frame = called_from(f"{SITE}/torch/a.py", f"{SITE}/torch/b.py")
    without_pytest(frame, monkeypatch)
    found = user_frame(frame)
    assert found is not None
    assert found.f_back is None


def test_without_a_frame_nothing_is_blamed():
    assert user_frame(None) is None


def decorated(function):
    @functools.wraps(function)
    def inside(*args):
        return function(*args)

    return inside


@decorated
def written_here():
    return sys._getframe()


def test_a_decorated_function_is_found_where_it_was_written():
    place = place_of_function(written_here)
    assert isinstance(place, CodeLine)
    assert place.file == __file__
    assert place.function == "written_here"


def test_a_function_not_written_in_python_has_no_place():
    assert place_of_function(torch.Tensor.item) is None
    assert place_of_function(None) is None


def test_a_library_frame_is_named_by_its_path_from_the_package():
    frame = called_from(f"{SITE}/lightning/pytorch/loops/fit.py")
    assert short_library_place(frame) == "lightning/pytorch/loops/fit.py:3"
    assert short_library_place(called_from("/usr/lib/python3.11/json/decoder.py")) == "decoder.py:3"
