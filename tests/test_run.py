"""hotlap run keeps the output, exit code and numbers of real programs, and reports what it applied."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import harness
import pytest
from harness import HOTLAP, PROGRAMS, TORCHRUN, Ran, bare, environment, printed_losses, python, warmed_if_possible
from warm import warmed

FUSED = ("--with", "fused-optimizer")
KINDS = {
    "a plain loop": python("plain_loop.py"),
    "Lightning": python("lightning_fit.py"),
    "Accelerate": python("accelerate_loop.py"),
    "HF Trainer": python("hf_trainer.py"),
    "torchrun": [*TORCHRUN, str(PROGRAMS / "data_parallel.py")],
}


def run(command: list[str], cwd: Path, *options: str, **more: str) -> Ran:
    folder = cwd / "kept"
    whole = [*HOTLAP, "run", "--run-dir", str(folder), *options, *command]
    done = subprocess.run(whole, cwd=cwd, env=environment(**more), capture_output=True, text=True, timeout=300)
    return Ran(done.returncode, done.stdout, done.stderr, folder)


@pytest.fixture
def alone(tmp_path_factory):
    """The same command without hotlap, run once for all tests."""
    return lambda command: harness.alone(tmp_path_factory, command)


def hotlap_lines(ran: Ran) -> list[str]:
    return [line for line in ran.stderr.splitlines() if line.startswith("hotlap:")]


def outcomes(ran: Ran) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted((ran.run / "running").glob("outcomes-*.json"))]


FRAMEWORKS = ("Lightning", "Accelerate", "HF Trainer", "torchrun")  # the safe plan is applied in each at every commit


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.thorough) if kind in FRAMEWORKS else kind for kind in KINDS]
)
def test_a_rounding_entry_changes_losses_only_by_rounding_and_nothing_else(kind, tmp_path, alone):
    expected = alone(KINDS[kind])
    command = KINDS[kind] if kind in ("a plain loop", "torchrun") else warmed(KINDS[kind])
    ran = run(command, tmp_path, *FUSED)

    assert ran.code == expected.code == 0, ran.stderr
    losses = printed_losses(ran.stdout)
    assert len(losses) == 24
    assert losses == pytest.approx(printed_losses(expected.stdout), rel=1e-4)
    assert _without_losses(ran.stdout) == _without_losses(expected.stdout)
    status = {"HF Trainer": "no effect"}.get(kind, "applied")  # its optimizer is fused already
    assert [line.split(" (")[0] for line in hotlap_lines(ran)] == [f"hotlap: {status}: fused-optimizer"]
    processes = outcomes(ran)
    assert len(processes) == (2 if kind == "torchrun" else 1)
    assert {outcome["status"] for process in processes for outcome in process["outcomes"]} == {status}


def _without_losses(stdout: str) -> list[str]:
    return [line.split(" loss ")[0] for line in stdout.splitlines()]


@pytest.mark.parametrize("kind", KINDS)
def test_the_safe_plan_does_not_change_the_output(kind, tmp_path, alone):
    expected = alone(KINDS[kind])
    ran = run(warmed_if_possible(KINDS[kind]), tmp_path, "--plan", "safe", "--at-once")

    assert ran.code == expected.code == 0, ran.stderr
    assert ran.stdout == expected.stdout
    assert hotlap_lines(ran), "what became of each entry is said"
    assert all(line.split(": ")[1] in ("applied", "no effect", "refused") for line in hotlap_lines(ran)), ran.stderr
    assert "Traceback" not in ran.stderr


def test_quiet_prints_nothing(tmp_path, alone):
    ran = run(warmed(python("no_loader.py")), tmp_path, *FUSED, "--quiet")

    assert ran.stderr == alone(python("no_loader.py")).stderr == ""
    assert outcomes(ran)[0]["outcomes"][0]["status"] == "applied"


def test_an_entry_without_effect_says_why(tmp_path, alone):
    ran = run(warmed(python("iterable.py")), tmp_path, *FUSED)

    assert hotlap_lines(ran) == ["hotlap: no effect: fused-optimizer (RMSprop: has no fused form)"]
    assert ran.stdout == alone(python("iterable.py")).stdout


def test_a_failing_program_keeps_its_traceback_and_exit_code(tmp_path):
    script = tmp_path / "fails.py"
    text = (PROGRAMS / "plain_loop.py").read_text()
    script.write_text(text.replace("        say(step, loss)", "        if step == 8: raise ValueError('of mine')"))
    command = warmed([sys.executable, str(script)])
    alone = bare(command, tmp_path, PYTHONPATH=str(PROGRAMS))
    ran = run(command, tmp_path, *FUSED, PYTHONPATH=str(PROGRAMS))

    assert ran.code == alone.code == 1
    assert [line for line in ran.stderr.splitlines() if line not in hotlap_lines(ran)] == alone.stderr.splitlines()


def test_an_error_inside_a_patched_call_shows_only_the_users_frames(tmp_path, alone):
    expected = alone(python("broken_dataset.py"))
    ran = run(python("broken_dataset.py"), tmp_path, "--plan", "safe")

    assert ran.code == expected.code == 1
    assert "ValueError: bad sample" in expected.stderr
    assert ran.stderr == expected.stderr


@pytest.mark.parametrize("verb", ["run", "profile"])
@pytest.mark.parametrize("stream", [">&-", "2>&-", "<&-", "2>/dev/full", "2> >(exec true)"])
def test_a_program_whose_streams_are_closed_or_full_runs_as_without_hotlap(verb, stream, tmp_path):
    command = [sys.executable, "-c", "import os, sys; os.write(1, b'mine') if sys.stdout else 0; sys.exit(4)"]
    words = shlex.join([sys.executable, "-m", "hotlap", verb, "--run-dir", str(tmp_path), *command])
    ran = subprocess.run(["bash", "-c", f"{words} {stream}"], capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 4, ran.stderr
    assert ran.stdout == ("" if stream == ">&-" else "mine")


def test_the_exit_code_of_the_program_passes_through(tmp_path):
    (tmp_path / "exits.py").write_text("import torch, sys; sys.exit(7)")
    assert run(warmed([sys.executable, "exits.py"]), tmp_path, *FUSED).code == 7


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_the_program_and_ends_it_as_without_hotlap(number, tmp_path):
    out = tmp_path / "finally.txt"
    command = [*HOTLAP, "run", "--run-dir", str(tmp_path / "kept"), *FUSED, *python("endless.py", "--out", str(out))]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    seen = ""
    while "hotlap:" not in seen:
        seen += process.stderr.readline()
        assert process.poll() is None, seen
    process.send_signal(number)
    _, stderr = process.communicate(timeout=600)
    if number == signal.SIGINT:
        assert process.returncode == -signal.SIGINT
        assert out.read_text() == "cleaned up"
        assert "KeyboardInterrupt" in stderr
    else:
        assert process.returncode == -signal.SIGTERM


def test_a_command_that_is_not_python_runs(tmp_path):
    ran = run(["echo", "hello"], tmp_path, *FUSED)

    assert (ran.code, ran.stdout, ran.stderr) == (0, "hello\n", "")


def test_reports_a_python_option_that_keeps_hotlap_out(tmp_path):
    ran = run([sys.executable, "-I", "-c", "print(2.0)"], tmp_path, *FUSED)

    assert (ran.code, ran.stdout) == (0, "2.0\n")
    assert hotlap_lines(ran) == [f"hotlap: -I keeps hotlap out of {sys.executable}; nothing is applied"]


def test_hotlap_off_is_inert(tmp_path, alone):
    ran = run(warmed(python("no_loader.py")), tmp_path, *FUSED, HOTLAP="off")

    assert ran.code == 0
    assert ran.stdout == alone(python("no_loader.py")).stdout
    assert outcomes(ran) == []
    assert hotlap_lines(ran) == ["hotlap: HOTLAP=off is set; nothing is applied"]


@pytest.mark.parametrize("text", ["import torch; print(torch.ones(2).sum().item())", "print(2.0)"])
def test_reports_a_program_that_does_not_train_in_one_line(text, tmp_path):
    (tmp_path / "counts.py").write_text(text)
    ran = run([sys.executable, "counts.py"], tmp_path, "--plan", "fast")

    assert (ran.code, ran.stdout) == (0, "2.0\n")
    assert ran.stderr == "hotlap: no training step was seen, so nothing was made faster\n"


def test_quiet_does_not_report_a_program_that_does_not_train(tmp_path):
    ran = run([sys.executable, "-c", "print(2.0)"], tmp_path, "--quiet")

    assert (ran.code, ran.stdout, ran.stderr) == (0, "2.0\n", "")


def test_a_program_with_an_old_torch_runs_without_hotlap(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("__version__ = '2.1.0'\n")
    (tmp_path / "train.py").write_text("import torch\nprint('trained')\n")
    ran = run([sys.executable, "train.py"], tmp_path, *FUSED, PYTHONPATH=str(tmp_path))

    assert (ran.code, ran.stdout) == (0, "trained\n")
    assert len(hotlap_lines(ran)) == 1
    assert "torch 2.1.0" in hotlap_lines(ran)[0]
    assert "nothing was applied" in hotlap_lines(ran)[0]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_and_child_processes_print_what_they_print_without_hotlap(method, tmp_path, alone):
    ran = run(warmed(python("own_processes.py", method)), tmp_path, "--plan", "safe")

    assert ran.code == 0, ran.stderr
    assert ran.stdout == alone(python("own_processes.py", "fork")).stdout


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--with", "fused-optimiser"], 2, "did you mean fused-optimizer"),
        (["--without", "fused"], 2, "did you mean"),
        (["--with", "gc-pauses=0"], 2, "not a whole number from 1 to"),
        (["--with", "fused-optimizer=1"], 2, "it takes no value"),
        (["--with", "C106", "--with", "fused-optimizer"], 2, "requested twice"),
        (["--with", "C106", "--without", "C106"], 2, "both in --with and in --without"),
        (["--plan", "safe", "--plan", "fast"], 2, "--plan is given 2 times"),
        (["--plan", "missing.json"], 79, "cannot read the plan: missing.json cannot be read (No such file"),
        (["--plan", "safe", "--risk", "numeric"], 2, "--plan safe means --risk exact"),
        (["--plan", ""], 79, "--plan is empty"),
        (["--with", ""], 2, "no optimisation is called ''"),
        (["--nosuch"], 2, "no such option: --nosuch"),
        (["--plan", "unknown.json"], 79, "names warp-drive, which this version of hotlap does not have"),
        (["--plan", "value.json"], 79, "not a whole number"),
        (["--with", "tf32"], 67, "tf32 needs a GPU"),
    ],
)
def test_bad_input_gets_one_line_and_the_command_is_not_started(options, code, says, tmp_path):
    (tmp_path / "unknown.json").write_text('{"schema": 1, "title": "", "choices": [{"name": "warp-drive"}]}')
    (tmp_path / "value.json").write_text('{"schema": 1, "title": "", "choices": [{"name": "gc-pauses", "value": "x"}]}')
    marker = tmp_path / "started"
    ran = run([sys.executable, "-c", f"open({str(marker)!r}, 'w')"], tmp_path, *options, CUDA_VISIBLE_DEVICES="")

    assert ran.code == code, ran.stderr
    assert ran.stderr.count("\n") == 1
    assert ran.stderr.startswith("hotlap: ")
    assert says in ran.stderr
    assert not marker.exists()
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ("pipe.json", "pipe.json is a pipe, not a file"),
        ("/dev/zero", "/dev/zero is a device, not a file"),
        (".", "is a folder, not a file"),
        ("link.json", "is a link to other.json"),
        ("corrupt.json", "is not valid JSON"),
        ("newer.json", "schema 99, but this hotlap reads up to"),
        ("other.json", "it has no 'schema'"),
    ],
)
def test_the_training_starts_without_an_unusable_plan(plan, says, tmp_path):
    (tmp_path / "corrupt.json").write_text('{"schema": 1, "tit')
    (tmp_path / "newer.json").write_text('{"schema": 99}')
    (tmp_path / "other.json").write_text('{"version": 99}')
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "link.json").symlink_to("other.json")
    ran = run([sys.executable, "-c", "print('trains')"], tmp_path, "--plan", plan, "--quiet")
    assert (ran.code, ran.stdout) == (0, "trains\n"), ran.stderr
    assert ran.stderr.count("\n") == 1
    assert says in ran.stderr
    assert "continuing without it, with --risk exact" in ran.stderr


def test_exit_codes_are_documented():
    from hotlap import errors

    section = (Path(__file__).parents[1] / "docs" / "exit-codes.md").read_text()
    for error in (errors.UnknownOptimization, errors.PlanUnusable, errors.NoDevice, errors.RunFolderUnwritable):
        assert error.__name__ in errors.__doc__
        assert f"{error.exit_code} " in section


def test_no_command_is_a_usage_error(tmp_path):
    ran = run([], tmp_path)
    assert ran.code == 2
    assert "COMMAND" in ran.stderr


@pytest.mark.parametrize(("command", "code"), [(["pythn", "train.py"], 127), (["./data"], 126)])
def test_reports_a_command_that_cannot_be_started(command, code, tmp_path):
    (tmp_path / "data").write_text("no program")
    ran = run(command, tmp_path)
    assert ran.code == code
    assert len(hotlap_lines(ran)) == 1


@pytest.fixture
def proven_plan(tmp_path, monkeypatch):
    """Saves a plan where `hotlap run` of that command finds it, signed as by a tune."""
    import torch

    from hotlap import store
    from hotlap.control.applied_plan import hardware
    from hotlap.plan import saved_plan, signature
    from hotlap.records.plan import Choice, Circumstances, Plan

    monkeypatch.chdir(tmp_path)

    def put(command: list[str], **differing: str) -> Path:
        usual = {
            "torch": str(torch.__version__),
            "hardware": hardware(torch),
            "source": saved_plan.source_hash(command),
        }
        proven = Circumstances(command=tuple(command), **{**usual, **differing})
        chosen = (Choice(name="fused-optimizer"),)
        plan = Plan(schema=1, title="tune", choices=chosen, proven=proven, origin=saved_plan.origin())
        place = saved_plan.place(tmp_path / "kept", command)
        store.prepare(tmp_path / "kept", "plans")
        return store.Run(place.parent).save(place.stem, signature.signed(plan, store.key_root()))

    return put


def test_the_proven_plan_of_a_command_is_used_automatically(proven_plan, tmp_path):
    command = warmed(python("no_loader.py"))
    proven_plan(command)
    ran = run(command, tmp_path)
    assert [line.split(" (")[0] for line in hotlap_lines(ran)] == ["hotlap: applied: fused-optimizer"]


def test_a_plan_edited_by_hand_is_not_applied_automatically(proven_plan, tmp_path, alone):
    program = python("no_loader.py")
    command = warmed(program)
    path = proven_plan(command)
    path.write_text(path.read_text().replace('"asked": false', '"asked": true'))
    ran = run(command, tmp_path)
    assert "was not proven by your own hotlap tune" in hotlap_lines(ran)[0]
    assert "applied: fused-optimizer" not in ran.stderr
    assert ran.stdout == alone(program).stdout


@pytest.mark.parametrize(
    ("differing", "says"),
    [
        ({"source": "0"}, "was proven for other source code; running with the plan 'safe' instead"),
        ({"hardware": "8 × Fast GPU"}, "was proven under 8 × Fast GPU, this is"),
    ],
)
def test_a_plan_proven_under_other_circumstances_is_not_applied_silently(differing, says, proven_plan, tmp_path, alone):
    program = python("no_loader.py")
    command = warmed(program)
    proven_plan(command, **differing)
    ran = run(command, tmp_path)

    assert ran.code == 0, ran.stderr
    assert says in hotlap_lines(ran)[0]
    assert "'safe' instead" in hotlap_lines(ran)[0]
    assert not any("applied: fused-optimizer" in line for line in hotlap_lines(ran)), "rounding is not safe"
    assert ran.stdout == alone(program).stdout


def test_list_and_explain_document_the_catalogue(tmp_path):
    listed = bare([*HOTLAP, "list"], tmp_path, COLUMNS="200")
    assert listed.code == 0
    assert "C106" in listed.stdout
    assert "fused-optimizer" in listed.stdout
    explained = bare([*HOTLAP, "explain", "c106"], tmp_path)
    assert explained.code == 0
    assert "When it does nothing" in explained.stdout
    assert bare([*HOTLAP, "explain", "c999"], tmp_path).code == 2
