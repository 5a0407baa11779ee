"""recurrent_kernels.py of the benchmarks, on the CPU: each piece of a pass is timed, and plans are restored."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from hotlap.kernels.recurrent import plans
from tests.kernels.recurrent import emulating

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
pytestmark = pytest.mark.skipif(shutil.which(emulating.COMPILER) is None, reason="needs a C++ compiler")
FEW, TILES = "cuda:fma:r2:c1:b1", "cuda:tile:r4:c1:b1"


@pytest.fixture
def script(monkeypatch, answering, constants):
    emulating.on_cpu(monkeypatch)
    monkeypatch.syspath_prepend(str(BENCHMARKS / "recurrent"))
    import recurrent_cases
    import recurrent_kernels

    answering(recurrent_cases.Place, tidy=None)
    constants(recurrent_kernels, REPLAYS=1)
    answering(recurrent_kernels.gc, freeze=None)
    yield recurrent_kernels
    plans.planned.cache_clear()
    for name in ("recurrent", "recurrent_cases", "recurrent_kernels"):
        sys.modules.pop(name, None)


def call(script, monkeypatch, out, *given):
    monkeypatch.setattr(sys, "argv", ["recurrent_kernels.py", "--device", "cpu", "--out", str(out), *given])
    script.main()
    return json.loads(out.read_text())


def test_each_piece_is_timed_and_the_outputs_match_cudnn(script, monkeypatch, tmp_path, capsys):
    given = ("--shapes", "lstm:5:4:5:2", "gru:3:3:5:17", "--variants", FEW, TILES)
    found = call(script, monkeypatch, tmp_path / "out.json", *given)
    few, many = (point["variants"] for point in found["points"])
    walks = {"forward walk", "backward walk", "sums", "whole"}
    assert set(few[FEW]["ms"]) == walks
    assert set(few[TILES]["ms"]) == walks | {"state product"}
    assert set(many[TILES]["ms"]) == walks | {"state product", "input product", "input weights product"}
    for variant in (*few.values(), *many.values()):
        assert variant["apart_from_cudnn"] < 1e-5
        assert all(took > 0 for took in variant["ms"].values())
        assert variant["resources"]["backward walk"]["shared_bytes"] > 0
    assert "lstm B5 T4 H5 L1 I2" in capsys.readouterr().out


def test_a_plan_gets_its_own_kernels_back(script):
    case = script.Case(script.Point("lstm", 3, 4, 5, 1, 2), script.Place("cpu"))
    pieces = script.Pieces(case, script.parse(FEW))
    level = pieces.plan.first
    kernels = (level.forward.kernel, level.backward.kernel, pieces.plan.sums)
    assert all(isinstance(kernel, emulating.Kernel) for kernel in kernels)


def test_the_reports_shapes_are_the_usual_ones(script):
    found = script.points([])
    assert len(found) == 12
    assert found[0].name == "lstm B200 T400 H64 L1 I6"
    for point in found:
        assert 1 < len(script.variants_for(point, [], script.Place("cpu"))) <= 5


def test_no_shape_starts_without_time_left(script, monkeypatch, tmp_path, capsys):
    given = ("--shapes", "lstm:5:4:5:2", "--variants", FEW, "--seconds", "-1")
    assert call(script, monkeypatch, tmp_path / "out.json", *given)["points"] == []
    assert "no time left" in capsys.readouterr().out


def test_a_failing_variant_is_reported_and_the_others_continue(script, monkeypatch, tmp_path, capsys):
    launch = emulating.Kernel.launch

    def refused(kernel, *given):
        if str(getattr(kernel.found, "variant", "")) == FEW:
            raise RuntimeError("CUDA error 701 in cuLaunchKernel: too many resources requested")
        launch(kernel, *given)

    monkeypatch.setattr(emulating.Kernel, "launch", refused)
    given = ("--shapes", "lstm:5:4:5:2", "--variants", FEW, TILES)
    (found,) = call(script, monkeypatch, tmp_path / "out.json", *given)["points"]
    assert list(found["variants"]) == [TILES]
    assert "too many resources" in found["failed"][FEW]
    assert f"{FEW} failed: CUDA error 701" in capsys.readouterr().out
