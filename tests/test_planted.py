"""hotlap profile names a planted fault with its line."""

import json

import pytest
from harness import PROGRAMS, profile, python
from warm import warmed

QUICK = ("--no-ceiling", "--steps", "40", "--warmup", "5")


def endless(*arguments):
    return warmed(python("endless.py", *arguments))


def line_of(mark):
    for number, line in enumerate((PROGRAMS / "endless.py").read_text().splitlines(), start=1):
        if line.endswith(f"# LINE {mark}"):
            return number
    raise AssertionError(mark)


@pytest.mark.parametrize(
    ("fault", "phase", "code", "verdict"),
    [
        ("slow-dataset", "data", "data-wait", "input-bound"),
        ("slow-optimizer", "optimizer", "slow-optimizer", "compute-bound"),
        ("huge-forward", "forward", "slow-forward", "compute-bound"),
        ("rest", "rest", "rest", "unknown"),
    ],
)
def test_a_planted_fault_is_the_first_finding_with_its_line(fault, phase, code, verdict, tmp_path):
    ran = profile(endless("--fault", fault), tmp_path, *QUICK)

    assert ran.code == 0, ran.stderr
    assert max(ran.observation["shares"], key=ran.observation["shares"].get) == phase
    assert ran.diagnosis["verdict"] == verdict
    first = ran.diagnosis["findings"][0]
    assert first["code"] == code
    assert first["place"]["file"] == str(PROGRAMS / "endless.py")
    assert first["place"]["line"] == line_of(fault)
    assert f"endless.py:{line_of(fault)}" in ran.stderr


def test_each_host_sync_is_counted_on_its_line_and_marked_on_cpu(tmp_path):
    ran = profile(endless("--fault", "item,print,branch"), tmp_path, *QUICK)

    syncs = ran.observation["syncs"]
    found = sorted((sync["line"], sync["kind"]) for sync in syncs)
    assert found == sorted([(line_of("item"), "item"), (line_of("print"), "print"), (line_of("branch"), "bool")])
    for sync in syncs:
        assert (sync["file"], sync["function"]) == (str(PROGRAMS / "endless.py"), "<module>")
        assert sync["per_step"] == pytest.approx(1.0, abs=0.06)
        assert sync["waits"] is False
    assert "would wait on CUDA" in ran.stderr


def test_a_program_without_syncs_shows_none(traced_run):
    assert traced_run.observation["syncs"] == []


def test_a_user_span_has_a_share_of_its_own(tmp_path):
    ran = profile(endless("--fault", "span"), tmp_path, *QUICK)

    seen = ran.observation
    assert max(seen["shares"], key=seen["shares"].get) == "span:augment"
    (span,) = seen["spans"]
    assert span["name"] == "augment"
    assert span["per_step"] == pytest.approx(1.0, abs=0.06)
    assert span["ms_per_step"] >= 10


def test_evaluation_has_a_share_of_its_own_and_its_loader_is_not_taken_for_training(tmp_path):
    ran = profile(endless("--fault", "evaluation", "--epoch", "16"), tmp_path, *QUICK)

    seen = ran.observation
    assert max(seen["shares"], key=seen["shares"].get) == "evaluation"
    assert sorted(loader["role"] for loader in seen["loaders"]) == ["evaluation", "train"]
    assert seen["samples_per_step"] == 4


def test_the_ceiling_is_the_step_without_its_input(tmp_path):
    ran = profile(endless("--fault", "slow-dataset"), tmp_path, "--steps", "30", "--warmup", "4")

    seen = ran.observation
    assert seen["ceiling"]["note"] is None
    assert seen["ceiling"]["samples_per_second"] > 3 * seen["samples_per_second"]
    assert "cached batch" in ran.diagnosis["sentence"]


def test_loaders_model_and_optimizer_are_described(worker_run):
    seen = worker_run.observation

    (loader,) = seen["loaders"]
    expected = {"role": "train", "dataset": "Samples", "dataset_kind": "map", "length": 256, "batch_size": 4,
                "workers": 1, "prefetch": 2, "pin_memory": False, "persistent_workers": False, "drop_last": False,
                "sampler": "RandomSampler"}  # fmt: skip
    assert {name: loader[name] for name in expected} == expected
    assert loader["dataset_place"]["function"] == "Samples.__getitem__"
    (model,) = seen["models"]
    assert (model["name"], model["parameters"], model["layers"]) == ("Net", 161, {"Linear": 2})
    (optimizer,) = seen["optimizers"]
    assert (optimizer["name"], optimizer["tensors"], optimizer["fused"]) == ("Sleepy", 4, False)
    assert seen["machine"]["torch"]
    assert seen["settings"]["threads"] == 1
    assert seen["memory"]["peak_host_mb"] > 50
    assert seen["samples_per_step"] == 4
    assert any(process["name"] == "main" for process in seen["processes"])


def test_a_trace_of_a_few_steps_is_saved_for_perfetto_and_tensorboard(traced_run):
    path = traced_run.run / traced_run.observation["trace"]
    assert path.name.endswith(".pt.trace.json")
    names = {event.get("name") for event in json.loads(path.read_text())["traceEvents"]}
    assert "aten::addmm" in names
