"""hotlap enters a process without the program noticing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hotlap.patch.guard import FILE
from hotlap.process.launch import BOOT, environment
from hotlap.records.codec import SCHEMA, to_json
from hotlap.records.session import Session
from tests.patch.subprocesses import REPOSITORY

LOOK = r"""
import json, re, sys
main = sys.modules["__main__"]
print(json.dumps({
    "path": sys.path,
    "argv": sys.argv,
    "orig_argv": sys.orig_argv[1:],
    "flags": repr(sys.flags),
    "main": {key: re.sub(" at 0x[0-9a-f]+", "", repr(value)) for key, value in vars(main).items()},
    "warnoptions": sys.warnoptions,
    "xoptions": sys._xoptions,
    "executable": sys.executable,
    "prefix": sys.prefix,
    "excepthook": sys.excepthook is sys.__excepthook__,
    "stdlib": sys.modules["os"].__file__,
    "sitecustomize": "sitecustomize" in sys.modules,
    "usercustomize": "usercustomize" in sys.modules,
}))
"""


@pytest.fixture
def session(tmp_path: Path) -> Path:
    """A session whose agent notes that it was called, and that the process ended."""
    (tmp_path / "run").mkdir()
    (tmp_path / "tiny_agent.py").write_text(
        "import os\n"
        "def start(torch, session, seams):\n"
        "    note = os.path.join(session.folder, 'agent.txt')\n"
        "    open(note, 'a').write('started ' + torch.__name__ + '\\n')\n"
        "    if os.environ.get('AGENT_FAILS'):\n"
        "        raise ValueError('a bug in the agent')\n"
        "    return lambda: open(note, 'a').write('ended\\n')\n"
    )
    record = Session(
        schema=SCHEMA,
        folder=str(tmp_path / "run"),
        agent="tiny_agent:start",
        steps=None,
        warmup=None,
        max_seconds=60.0,
        full=False,
        ceiling=False,
        trace=False,
        started=0.0,
    )
    file = tmp_path / "session.json"
    file.write_text(to_json(record))
    return file


def clean() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "HOTLAP"))}


def python(
    *arguments: str, env: dict[str, str], cwd: Path = Path("/"), code: int = 0
) -> subprocess.CompletedProcess[str]:
    process = subprocess.run(
        [sys.executable, *arguments], env=env, cwd=cwd, capture_output=True, text=True, timeout=300, check=False
    )
    assert process.returncode == code, process.stderr
    return process


def hellos(session: Path) -> list[Path]:
    return list((session.parent / "run").glob("hello-*"))


@pytest.mark.parametrize("how", ["script", "module", "command", "flags", "isolated path", "safe path"])
def test_hotlap_is_invisible_to_the_program(session, tmp_path, how):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(LOOK)
    arguments = {
        "script": ["train.py", "--epochs", "3", "-h"],
        "module": ["-m", "train", "-c", "x"],
        "command": ["-c", LOOK, "one", "--two"],
        "flags": ["-O", "-B", "-u", "-X", "dev", "-W", "error::ResourceWarning", "train.py"],
        "isolated path": ["-s", "train.py"],
        "safe path": [*(["-P"] if sys.version_info >= (3, 11) else []), "-c", LOOK],
    }[how]
    plain = python(*arguments, env=clean(), cwd=folder)
    entered = python(*arguments, env=environment(session, clean()), cwd=folder)
    assert json.loads(entered.stdout) == json.loads(plain.stdout)
    assert entered.stderr == plain.stderr
    assert len(hellos(session)) == 1


def test_the_users_python_path_stays_in_place(session, tmp_path):
    base = {**clean(), "PYTHONPATH": f"{tmp_path / 'one'}{os.pathsep}{tmp_path / 'two'}"}
    plain, entered = (python("-c", LOOK, env=env) for env in (base, environment(session, base)))
    assert json.loads(entered.stdout) == json.loads(plain.stdout)


def test_another_sitecustomize_still_runs(session, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.custom = __file__\nmark = 'theirs'\n")
    base = {**clean(), "PYTHONPATH": str(tmp_path)}
    look = "import sys, sitecustomize; print(sys.custom, sitecustomize.mark, sys.modules['sitecustomize'].__file__)"
    plain, entered = (python("-c", look, env=env).stdout for env in (base, environment(session, base)))
    theirs = str(tmp_path / "sitecustomize.py")
    assert entered == plain == f"{theirs} theirs {theirs}\n"
    assert hellos(session)


def test_an_error_in_another_sitecustomize_is_reported_by_python(session, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("raise RuntimeError('theirs')\n")
    base = {**clean(), "PYTHONPATH": str(tmp_path)}
    plain, entered = (python("-c", "print('on')", env=env) for env in (base, environment(session, base)))
    assert entered.stdout == plain.stdout == "on\n"
    assert entered.stderr == plain.stderr
    assert "RuntimeError: theirs" in entered.stderr


def test_without_a_user_sitecustomize_the_interpreters_own_is_used(session):
    """Debian's Python has its own sitecustomize."""
    look = """
import sys
print(getattr(sys.modules.get("sitecustomize"), "__file__", None))
try:
    import sitecustomize
except ImportError as error:
    print(type(error).__name__, error.name)
"""
    plain, entered = (python("-c", look, env=env).stdout for env in (clean(), environment(session, clean())))
    assert entered == plain
    assert str(BOOT) not in entered


def test_the_boot_folder_leaves_no_trace_on_the_path(session):
    look = "import sys; print(*sys.path, *sys.path_importer_cache)"
    assert str(BOOT) not in python("-c", look, env=environment(session, clean())).stdout


def test_imports_nothing_of_hotlap_when_switched_off_by_the_environment(session):
    env = {**environment(session, clean()), "HOTLAP": "off"}
    look = "import sys; print([name for name in sys.modules if name.split('.')[0] in ('hotlap', '_hotlap_within')])"
    assert python("-c", look, env=env).stdout == "[]\n"
    assert not hellos(session)


def test_does_nothing_without_a_session(session):
    env = environment(session, clean())
    del env["HOTLAP_SESSION"]
    assert python("-c", "import sys; print('_hotlap_within' in sys.modules)", env=env).stdout == "False\n"


@pytest.mark.parametrize("flag", ["-I", "-E", "-S"])
def test_an_interpreter_that_ignores_its_environment_is_not_entered(session, flag):
    process = python(flag, "-c", "print('ran')", env=environment(session, clean()))
    assert (process.stdout, process.stderr) == ("ran\n", "")
    assert not hellos(session)


@pytest.mark.parametrize("damage", ["missing", "corrupt"])
def test_an_unreadable_session_is_reported_once_and_the_program_runs(session, damage):
    if damage == "missing":
        session.unlink()
    else:
        session.write_text("{")
    process = python(
        "-c",
        "import sys; print('ran', '_hotlap_within' in sys.modules)",
        env=environment(session, clean()),
    )
    assert process.stdout == "ran False\n"
    assert process.stderr.count("hotlap: cannot enter") == 1
    assert len(process.stderr.splitlines()) == 1


def test_the_agent_is_called_after_torch_is_imported_and_at_exit(session, tmp_path):
    base = {**clean(), "PYTHONPATH": str(tmp_path)}
    note = session.parent / "run" / "agent.txt"
    python("-c", "print('no torch')", env=environment(session, base))
    assert not note.exists()
    python("-c", "import torch, torch; raise SystemExit(3)", env=environment(session, base), code=3)
    assert note.read_text().splitlines() == ["started torch", "ended"]


def test_a_failing_agent_spares_the_program_and_records_its_error_in_a_file(session, tmp_path):
    base = {**clean(), "PYTHONPATH": str(tmp_path), "AGENT_FAILS": "1"}
    process = python("-c", "import torch; print(torch.ones(2).sum().item())", env=environment(session, base))
    assert process.stdout == "2.0\n"
    assert process.stderr.count("hotlap:") == 1
    assert "your training continues" in process.stderr
    report = (session.parent / "run" / FILE).read_text()
    assert "ValueError: a bug in the agent" in report
    assert "entering the process" in report


NAMES = "import sys; {before}import hotlap, wrapt, statistics; print(hotlap.me, wrapt.me, statistics.me)"


@pytest.mark.parametrize("how", ["script", "package", "module", "command", "python path", "later"])
def test_user_modules_named_like_hotlaps_are_the_ones_imported(session, tmp_path, how):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    for name in ("hotlap", "wrapt", "statistics"):
        file = theirs / name / "__init__.py" if how == "package" else theirs / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text("me = __file__\n")
    before = f"sys.path.insert(0, {str(theirs)!r}); " if how == "later" else ""
    (theirs / "train.py").write_text(NAMES.format(before=""))
    arguments = {
        "script": [str(theirs / "train.py")],
        "package": ["-u", str(theirs / "train.py")],
        "module": ["-m", "train"],
    }
    base = {**clean(), "PYTHONPATH": str(theirs)} if how == "python path" else clean()
    words = arguments.get(how, ["-c", NAMES.format(before=before)])
    cwd = theirs if how in ("module", "command") else Path("/")
    plain, entered = (python(*words, env=env, cwd=cwd) for env in (base, environment(session, base)))
    assert plain.stdout.count(str(theirs)) == 3
    assert entered.stdout == plain.stdout
    assert entered.stderr == ""
    assert hellos(session)


def test_a_program_that_imports_hotlap_gets_the_running_package(session):
    base = {**clean(), "PYTHONPATH": str(REPOSITORY)}
    look = (
        "import sys, hotlap, hotlap.observe.span as span\n"
        "print(hotlap.span is span.span, hotlap is sys.modules['_hotlap_within'])\n"
        "print(hotlap.enable.__name__, hotlap.__file__)\n"
        "print(span is sys.modules['_hotlap_within.observe.span'], span.__spec__.name)\n"
    )
    entered = python("-c", look, env=environment(session, base)).stdout.splitlines()
    assert entered == [
        "True True",
        f"enable {REPOSITORY / 'hotlap' / '__init__.py'}",
        "True _hotlap_within.observe.span",
    ]


def test_hotlap_can_run_under_hotlap(session):
    base = {**clean(), "PYTHONPATH": str(REPOSITORY)}
    plain, entered = (python("-m", "hotlap", "list", env=env) for env in (base, environment(session, base)))
    assert entered.stdout == plain.stdout


def test_hotlap_is_not_importable_where_it_is_not_installed(session, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    command = [str(tmp_path / "env" / "bin" / "python"), "-c", "import hotlap"]
    process = subprocess.run(command, env=environment(session, clean()), cwd="/", capture_output=True, text=True)
    assert "No module named 'hotlap'" in process.stderr
    assert hellos(session)


def test_an_error_while_importing_torch_is_shown_as_without_hotlap(session, tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("1 / 0\n")
    base = {**clean(), "PYTHONPATH": str(tmp_path)}
    plain, entered = (python("-c", "import torch", env=env, code=1) for env in (base, environment(session, base)))
    assert entered.stderr == plain.stderr
    assert "importlib" not in entered.stderr


def test_torch_is_imported_by_the_loader_python_chose(session, tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("__version__ = '2.1'\n")
    look = "import torch; print(type(torch.__loader__), torch.__loader__ is torch.__spec__.loader)"
    base = {**clean(), "PYTHONPATH": str(tmp_path)}
    plain, entered = (python("-c", look, env=env).stdout for env in (base, environment(session, base)))
    assert entered == plain


@pytest.mark.parametrize("order", ["theirs first", "ours first"])
def test_user_modules_do_not_shadow_standard_modules_that_hotlap_needs(session, tmp_path, order):
    (tmp_path / "statistics.py").write_text("me = 'theirs'\n")
    theirs = "import statistics; print(statistics.me)\n"
    named = "sys.modules['_hotlap_within.patch.entry']._named('hotlap.observe.window:median')"
    ours = f"import sys; print({named}([1, 2, 3]))\n"
    (tmp_path / "train.py").write_text(theirs + ours + theirs if order == "theirs first" else ours + theirs + ours)
    process = python(str(tmp_path / "train.py"), env=environment(session, clean()))
    assert process.stdout.split() == (["theirs", "2", "theirs"] if order == "theirs first" else ["2", "theirs", "2"])


BLOCKS = """
import sys
class Block:
    def find_spec(self, name, path, target=None):
        if "hotlap" in name:
            raise ImportError("not on the list: " + name)
sys.meta_path.insert(0, Block())
import torch
print("imported", torch.NAME)
"""


def test_a_program_that_blocks_imports_runs_without_hotlap(session, tmp_path):
    (tmp_path / "torch.py").write_text("NAME = 'theirs'\n")
    (tmp_path / "train.py").write_text(BLOCKS)
    ran = python("train.py", env=environment(session, clean()), cwd=tmp_path)
    assert ran.stdout == "imported theirs\n"
    (line,) = ran.stderr.splitlines()
    assert line.startswith("hotlap: cannot enter")
    assert "not on the list" in line


def test_bytecode_is_saved_whole_or_not_at_all(tmp_path):
    """On a full disk Python would save a part, and the module could never be imported again."""
    limited = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "from hotlap.patch.private_package import _Loader\n"
        "for size in (90, 200):\n"
        "    _Loader('module', 'module.py').set_data(f'{sys.argv[1]}/{size}.pyc', bytes(size))\n"
    )
    python("-B", "-c", limited, str(tmp_path), env={**clean(), "PYTHONPATH": str(REPOSITORY)})
    assert [(path.name, path.stat().st_size) for path in tmp_path.iterdir()] == [("90.pyc", 90)]


def test_clocks_that_the_program_replaces_are_not_ours(session, tmp_path):
    (tmp_path / "torch.py").write_text("")
    (tmp_path / "train.py").write_text(
        "import sys, time\n"
        "kept = time.perf_counter\n"
        "time.perf_counter = lambda: print('counted')\n"
        "import _hotlap_within.observe.messages as ours\n"
        "print(ours.perf_counter is kept, sys.modules['time'] is time)\n"
    )
    ran = python("train.py", env=environment(session, clean()), cwd=tmp_path)
    assert ran.stdout == "True True\n"


def test_a_program_that_removes_its_folder_is_entered(session, tmp_path):
    (tmp_path / "torch.py").write_text("__version__ = '1.0'")
    (tmp_path / "gone").mkdir()
    env = environment(session, {**clean(), "PYTHONPATH": str(tmp_path)})
    ran = python("-c", "import os; os.rmdir(os.getcwd()); import torch; print(1)", env=env, cwd=tmp_path / "gone")
    assert (ran.stdout, ran.stderr) == ("1\n", "")
