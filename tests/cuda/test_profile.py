"""`hotlap profile` on a GPU reports syncs, copies and how busy the device is, and itself never waits."""

import json
import sys
from pathlib import Path

import pytest
from harness import bare, printed_losses, profile

pytestmark = pytest.mark.cuda
PROGRAM = Path(__file__).parent / "program.py"
QUICK = ("--no-ceiling", "--steps", "100", "--warmup", "10")


def program(*arguments):
    return [sys.executable, str(PROGRAM), *arguments]


def line_of(mark):
    lines = PROGRAM.read_text().splitlines()
    return next(number for number, line in enumerate(lines, start=1) if line.endswith(f"# LINE {mark}"))


@pytest.mark.parametrize("fault", ["none", "pinned", "scaler", "item", "compiled"])
def test_losses_and_output_match_the_bare_run(fault, tmp_path):
    command = program("--fault", fault, "--steps", "60")
    alone = bare(command, tmp_path)
    watched = profile(command, tmp_path, "--full")

    assert watched.code == alone.code == 0, watched.stderr
    assert watched.stdout == alone.stdout
    losses = watched.observation["losses"]
    assert losses == printed_losses(alone.stdout)[: len(losses)]
    assert len(losses) >= 5


def test_nothing_of_ours_synchronises_the_device(tmp_path):
    """The program turns synchronising calls into errors and makes none, so any error would be ours."""
    ran = profile(program("--fault", "sync-error"), tmp_path, *QUICK)

    assert ran.code == 0, ran.stderr
    assert ran.observation["ended"] == "window complete"
    assert ran.observation["steps"] == 100
    assert len(ran.observation["losses"]) == 110
    assert len(ran.observation["device_step_ms"]) >= 20
    assert ran.observation["syncs"] == []


def test_graphs_of_torch_compile_are_replayed_while_lines_are_sampled(tmp_path):
    """A frame held even briefly would keep activations alive, and the replay of the backward would raise."""
    ran = profile(program("--fault", "reduce-overhead"), tmp_path, *QUICK)

    assert ran.code == 0, ran.stderr
    assert ran.observation["ended"] == "window complete"
    assert {Path(line["file"]).name for line in ran.observation["hot_lines"]} == {PROGRAM.name}


@pytest.mark.parametrize(("fault", "kind"), [("item", "item"), ("mask", "mask")])
def test_a_sync_is_reported_on_its_line(fault, kind, tmp_path):
    seen = profile(program("--fault", fault), tmp_path, *QUICK).observation

    (sync,) = [sync for sync in seen["syncs"] if sync["kind"] == kind]
    assert sync["line"] == line_of(fault)
    assert sync["waits"] is True
    assert sync["per_step"] == pytest.approx(1.0, abs=0.05)
    assert sync["ms_per_step"] > 0


@pytest.mark.parametrize(("fault", "pinned", "blocking"), [("none", False, True), ("pinned", True, False)])
def test_copies_are_counted_with_their_kind(fault, pinned, blocking, tmp_path):
    seen = profile(program("--fault", fault), tmp_path, *QUICK).observation

    assert {(copy["pinned"], copy["blocking"]) for copy in seen["copies"]} == {(pinned, blocking)}
    assert sum(copy["bytes_per_step"] for copy in seen["copies"]) == pytest.approx(256 * 65 * 4, rel=0.03)
    assert sum(copy["per_step"] for copy in seen["copies"]) == pytest.approx(2.0, abs=0.05)


@pytest.mark.parametrize(
    ("fault", "verdict"),
    [("compute", "compute-bound"), ("memory", "memory-bound"), ("launch", "launch-bound"), ("copy", "copy-bound")],
)
def test_the_verdict_follows_the_fault(fault, verdict, tmp_path):
    ran = profile(program("--fault", fault), tmp_path, *QUICK)

    assert ran.code == 0, ran.stderr
    assert ran.diagnosis["verdict"] == verdict, ran.diagnosis["sentence"]


def test_the_device_is_described(tmp_path):
    seen = profile(
        program("--fault", "compute"), tmp_path, "--no-ceiling", "--steps", "400", "--warmup", "10"
    ).observation

    device = seen["device"]
    assert device["busy_share"] > 0.8
    assert device["launches_per_step"] > 5
    assert device["kernels"][0]["kind"] == "matmul"
    assert seen["machine"]["gpu"]
    assert seen["memory"]["peak_device_mb"] > 100
    assert seen["models"][0]["device"].startswith("cuda")
    assert sum(seen["shares"].values()) == pytest.approx(1.0)
    assert json.dumps(seen)


def test_the_ceiling_is_measured_with_forked_workers(tmp_path):
    ran = profile(program("--workers", "2"), tmp_path, "--steps", "60", "--warmup", "10")

    assert ran.code == 0, ran.stderr
    assert ran.observation["ceiling"]["note"] is None
    ceiling, rate = ran.observation["ceiling"]["samples_per_second"], ran.observation["samples_per_second"]
    assert ceiling > 0.7 * rate, "measured one after the other, perhaps beside other work"


def test_a_trace_holds_kernels(tmp_path):
    ran = profile(program(), tmp_path, *QUICK, "--trace")

    events = json.loads((ran.run / ran.observation["trace"]).read_text())["traceEvents"]
    assert any(event.get("cat") == "kernel" for event in events)
    assert any(event.get("cat") == "cpu_op" for event in events)
