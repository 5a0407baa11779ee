"""What is published: the wheel and the source, what they hold, and that they install next to a torch of the user's."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_string
from email.message import Message
from importlib.metadata import distribution
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
from test_interpreters import with_needs

import hotlap

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    (built,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path_factory.mktemp("wheel")), versions=["standard"])
    return Path(built)


@pytest.fixture(scope="module")
def metadata(wheel) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return message_from_string(archive.read(name).decode())


def test_the_metadata_is_what_an_index_accepts(metadata):
    assert metadata["Metadata-Version"] == "2.4"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_payload().strip() == (ROOT / "README.md").read_text(encoding="utf-8").strip()


def test_torch_is_never_installed_by_what_a_user_asks_for(metadata):
    needs = metadata.get_all("Requires-Dist") or []
    assert not [need for need in needs if need.startswith("torch") and not re.search(r"'(demo|test)'", need)]


def test_all_installs_what_every_verb_may_need(metadata):
    needs = metadata.get_all("Requires-Dist") or []

    def of(extra: str) -> set[str]:
        return {re.split(r"[^\w.-]", need)[0] for need in needs if f"extra == '{extra}'" in need}

    assert of("all") == of("tune") | of("fix") | of("bench")


def test_the_source_holds_what_the_wheel_is_built_from(tmp_path):
    (built,) = SdistBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with tarfile.open(built) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    for name in ("LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "_hotlap_start.py", "workloads", "tests"):
        assert (folder / name).exists(), name
    (again,) = WheelBuilder(str(folder)).build(directory=str(tmp_path / "again"), versions=["standard"])
    with zipfile.ZipFile(again) as archive:
        assert "hotlap/cli/__init__.py" in archive.namelist()


def test_it_installs_offline_next_to_a_torch_of_the_users(wheel, tmp_path):
    environment = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    (site,) = environment.glob("lib/python3*/site-packages")
    installed = Path(str(distribution("torch").locate_file("")))
    for entry in with_needs("torch", "numpy", "click", "rich", "psutil", "nvidia-ml-py"):
        (site / entry).symlink_to(installed / entry)
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "install"]
    done = subprocess.run([*pip, "--no-index", str(wheel)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (site / "torch").is_symlink(), "torch is still the user's"
    typed = [
        str(environment / "bin" / "hotlap"),
        "doctor",
        str(python),
        "--json",
    ]
    own = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "HOTLAP_DIR": str(tmp_path / "kept")}
    found = subprocess.run(typed, capture_output=True, text=True, env=own, cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    checks = {check["name"]: check for check in json.loads(found.stdout)}
    assert checks["torch"]["state"] == "good"


def test_the_package_shows_its_public_names_and_nothing_else():
    assert dir(hotlap) == ["__version__", "disable", "enable", "metric", "span"]
    assert all(hasattr(hotlap, name) for name in dir(hotlap))


def test_the_version_is_the_same_everywhere(metadata):
    assert metadata["Version"] == hotlap.__version__
    assert f"version: {hotlap.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert hotlap.__version__ in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n### ")[0]
