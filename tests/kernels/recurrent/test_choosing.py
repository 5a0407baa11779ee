"""The variant of a layer is measured once per shape, remembered on disk, and never slower than cuDNN."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import pytest
import torch

from hotlap.kernels.cuda import folder, nvrtc
from hotlap.kernels.recurrent import agreement, cuda_recurrence, measurement, probe, selection
from hotlap.kernels.recurrent.key import Key
from hotlap.kernels.recurrent.selection import CUDNN, choice, fastest
from tests.kernels.recurrent.compared import BY, FEW, HIDDEN

KEY = Key("lstm", 200, 400, 3, 64, 1, 1, True, "float32", False, True)
FAST, MMA = "cuda:fma:r2:c1:b1", "cuda:mma:r8:c1:b1"
GPU = torch.device("cuda", 0)


@pytest.fixture
def gpu(monkeypatch, answering, tmp_path):
    """A fake GPU whose measurements are set by the test."""

    class Gpu:
        capturing, loads, loaded, measured, times = False, True, [], [], {CUDNN: 2.0, FAST: 0.5}
        times_of_only = None  # used where only an earlier winner is measured; None: the same times

    def load(variant, *_):
        if not Gpu.loads:
            raise RuntimeError("no such kernel")
        Gpu.loaded.append(str(variant))

    def measured(key, device, only=()):
        Gpu.measured.append(key)
        Gpu.only = only
        return Gpu.times if not only or Gpu.times_of_only is None else Gpu.times_of_only

    Gpu.loaded, Gpu.measured = [], []
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: Gpu.capturing)
    answering(selection, file_of=tmp_path / "choices.json")
    monkeypatch.setattr(cuda_recurrence, "load", load)
    monkeypatch.setattr(measurement, "times", measured)
    selection.forget()
    yield Gpu
    selection.forget()


def test_a_shape_is_measured_once(gpu):
    assert [choice(KEY, GPU) for _ in range(3)] == [FAST] * 3
    assert gpu.measured == [KEY]


def test_at_another_length_only_the_winner_is_measured(gpu):
    choice(KEY, GPU)
    assert gpu.only == ()
    choice(replace(KEY, steps=150), GPU)
    assert gpu.only == (FAST,)
    choice(replace(KEY, batch=32), GPU)
    assert gpu.only == ()


@pytest.mark.parametrize("found", [{CUDNN: 2.0}, {CUDNN: 2.0, FAST: 2.1}])
def test_all_variants_are_measured_where_the_earlier_winner_is_wrong_or_slow(gpu, found):
    choice(KEY, GPU)
    gpu.times_of_only, gpu.times = found, {CUDNN: 2.0, MMA: 0.4}
    longer = replace(KEY, steps=800)
    assert choice(longer, GPU) == MMA
    assert gpu.measured == [KEY, longer, longer]


def test_choices_made_by_other_rules_are_forgotten(answering, constants, tmp_path):
    answering(torch.cuda, get_device_name="A GPU")
    before = selection.file_of(0)
    assert before == selection.file_of(0)
    for name in (*cuda_recurrence.SOURCES, *selection.CHOOSERS):
        (tmp_path / name).write_text((cuda_recurrence.HERE / name).read_text())
    constants(cuda_recurrence, HERE=tmp_path)
    assert before == selection.file_of(0)
    (tmp_path / "agreement.py").write_text("")
    assert before != selection.file_of(0)


def test_the_next_process_reads_the_choice_from_disk(gpu, tmp_path):
    choice(KEY, GPU)
    selection.forget()
    assert choice(KEY, GPU) == FAST
    assert (len(gpu.measured), gpu.loaded) == (1, [FAST])
    assert json.loads((tmp_path / "choices.json").read_text()) == {KEY.text: FAST}


def test_choices_written_meanwhile_by_another_process_survive(gpu, tmp_path):
    selection.stored(0)
    (tmp_path / "choices.json").write_text(json.dumps({"other": CUDNN}))
    choice(KEY, GPU)
    assert json.loads((tmp_path / "choices.json").read_text()) == {KEY.text: FAST, "other": CUDNN}


@pytest.mark.parametrize("content", ["", "{", "[]", '{"a": 1}', '{"a": "cuda:nonsense"}', "\x00"])
def test_ignores_a_torn_or_foreign_file_of_choices(gpu, tmp_path, content):
    (tmp_path / "choices.json").write_text(content)
    assert choice(KEY, GPU) == FAST
    assert gpu.measured == [KEY]


def test_a_remembered_kernel_that_does_not_load_is_measured_again(gpu, tmp_path):
    (tmp_path / "choices.json").write_text(json.dumps({KEY.text: FAST}))
    gpu.loads, gpu.times = False, {CUDNN: 2.0}
    assert choice(KEY, GPU) == CUDNN
    assert gpu.measured == [KEY]


def test_nothing_is_measured_during_a_capture(gpu):
    gpu.capturing = True
    assert choice(KEY, GPU) == CUDNN
    gpu.capturing = False
    assert choice(KEY, GPU) == FAST
    gpu.capturing = True
    assert choice(KEY, GPU) == FAST
    assert gpu.measured == [KEY]


def test_lengths_that_never_repeat_fall_back_to_cudnn(gpu, constants):
    constants(selection, MEASURED_AT_MOST=2)
    keys = [Key("gru", 8, steps, 3, 16, 1, 1, True, "float32", False, True) for steps in range(1, 5)]
    assert [choice(key, GPU) for key in keys] == [FAST, FAST, CUDNN, CUDNN]


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({CUDNN: 2.0, FAST: 0.5, "cuda:mma:r8:c1:b1": 0.4}, "cuda:mma:r8:c1:b1"),
        ({CUDNN: 1.0, FAST: 1.1}, CUDNN),
        ({CUDNN: 1.0, FAST: 0.93}, CUDNN),
        ({CUDNN: 1.0, FAST: 0.91}, FAST),
        ({CUDNN: 3.0, FAST: 2.95}, CUDNN),
        ({CUDNN: 3.0, FAST: 2.85}, FAST),
        ({CUDNN: 1.0}, CUDNN),
        ({}, CUDNN),
        ({FAST: 0.1}, CUDNN),
    ],
)
def test_our_kernels_are_used_only_where_clearly_faster(times, expected):
    assert fastest(times) == expected


def test_forcing_a_variant_ends_with_its_block(gpu):
    with selection.forced(CUDNN):
        assert choice(KEY, GPU) == CUDNN
    with selection.forced(BY):
        assert choice(KEY, GPU) == BY
    assert choice(KEY, GPU) == FAST
    with pytest.raises(ValueError, match="not a variant"), selection.forced("fastest"):
        pass


def test_a_missing_compiler_is_reported_once(monkeypatch, caplog):
    class Properties:
        multi_processor_count, major, minor = 132, 9, 0

    def missing():
        raise nvrtc.NoCompiler("libnvrtc was not found")

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    monkeypatch.setattr(nvrtc, "library", missing)
    monkeypatch.setattr(agreement, "_said", set())
    assert [measurement.usable(KEY, 0) for _ in range(2)] == [[], []]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "recurrent layers use cuDNN" in caplog.text


@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("backward", [True, False])
@pytest.mark.usefixtures("emulated")
def test_a_whole_layer_is_timed_and_draws_no_random_numbers(kind, dtype, backward):
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    key = Key(kind, 4, 5, FEW, HIDDEN, 2, 2, True, dtype, False, backward)
    with torch.set_grad_enabled(backward):
        layer, x, dy = probe.made(key, "cpu")
        assert (x.shape, dy.shape, x.dtype) == ((5, 4, FEW), (5, 4, 2 * HIDDEN), getattr(torch, dtype))
        probe.by_torch(key, layer, x, dy)
        probe.by_ours(key, layer, x, dy, BY)
    assert torch.equal(torch.rand(1), expected)


def by_the_clock(monkeypatch, clock):
    """Measure variants whose successive times are given."""
    clocks = {name: iter(times) for name, times in clock.items()}
    ran = []
    monkeypatch.setattr(measurement, "_timed", lambda run: run())
    runs = {name: lambda name=name: ran.append(name) or next(clocks[name]) for name in clock}
    return measurement.interleaved(runs), ran


def test_the_median_of_alternating_rounds_counts(monkeypatch):
    cudnn = [9, 2.2, 2.0, 1.9, 2.1, 2.0, 0.1, 2.0, 2.3, 1.8]  # warm, screened twice, seven rounds
    mine = [9, 1.8, 1.7, 1.6, 1.7, 1.8, 1.7, 9.0, 9.0, 9.0]
    found, ran = by_the_clock(monkeypatch, {CUDNN: cudnn, FAST: mine})
    assert found == {CUDNN: 2.0, FAST: 1.8}
    assert ran[6:10] == [CUDNN, FAST, FAST, CUDNN]


def test_variants_that_cannot_win_are_not_measured_again(monkeypatch):
    found, ran = by_the_clock(monkeypatch, {CUDNN: [9, 4.0, 4.0], FAST: [9, 1.0, 1.1], MMA: [9, 2.0, 1.9]})
    assert found == {CUDNN: 4.0, FAST: 1.0, MMA: 1.9}
    assert len(ran) == 9


def test_device_time_decides_among_our_kernels_when_the_host_is_slower(monkeypatch):
    """All take 1 ms as seen from the host; the one that is fastest on the device is compared with cuDNN."""
    on_device = {FAST: 0.6, MMA: 0.3, "cuda:tile:r4:c1:b1": 0.4}
    monkeypatch.setattr(measurement, "_on_device", lambda run: on_device[run.name])
    ran = []

    class Run:
        def __init__(self, name):
            self.name = name

        def __call__(self):
            ran.append(self.name)
            return {CUDNN: 1.2, MMA: 1.05}.get(self.name, 1.0)

    monkeypatch.setattr(measurement, "_timed", lambda run: run())
    found = measurement.interleaved({name: Run(name) for name in (CUDNN, *on_device)})
    assert found == {CUDNN: 1.2, MMA: 1.05}
    assert set(ran[-14:]) == {MMA, CUDNN}


@pytest.mark.parametrize("before", [0, 2])
def test_measuring_works_where_host_syncs_are_errors(monkeypatch, before):
    mode, modes = [before], []
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: mode[0])
    monkeypatch.setattr(
        torch.cuda, "set_sync_debug_mode", lambda setting: modes.append(setting) or mode.__setitem__(0, setting)
    )
    with measurement._syncs_allowed():
        assert mode == [0]
    assert mode == [before]
    assert modes == ([] if before == 0 else [0, before])


def test_a_shape_that_would_take_seconds_is_measured_with_fewer_steps():
    """cuDNN's GRU crashes at the full length of the first shape."""
    assert measurement.shortened(replace(KEY, kind="gru", batch=8192, hidden=128)).steps == 128
    assert measurement.shortened(replace(KEY, batch=8192, hidden=128, directions=2)).steps == 64
    assert measurement.shortened(replace(KEY, batch=1 << 20, hidden=1024)).steps == 16
    assert measurement.shortened(replace(KEY, batch=1 << 20, hidden=1024, steps=3)).steps == 3
    assert measurement.shortened(KEY) == KEY


def test_slow_shapes_are_measured_once(monkeypatch):
    found, _ = by_the_clock(monkeypatch, {CUDNN: [99, 40.0], FAST: [99, 30.0]})
    assert found == {CUDNN: 40.0, FAST: 30.0}


def test_failing_variants_are_left_out(monkeypatch, caplog):
    monkeypatch.setattr(agreement, "_said", set())
    monkeypatch.setattr(measurement, "_timed", lambda run: run() or 1.0)

    def fails():
        raise RuntimeError("too many resources requested")

    assert measurement.interleaved({CUDNN: lambda: None, MMA: fails}) == {CUDNN: 1.0}
    assert "too many resources requested" in caplog.text


def test_kernels_and_choices_are_kept_in_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert folder.cache_folder() == tmp_path / "hotlap" / "kernels"
    folder.written(folder.cache_folder() / "one", b"content")
    assert [path.name for path in folder.cache_folder().iterdir()] == ["one"]


def test_works_without_a_writable_cache(tmp_path):
    (tmp_path / "file").write_text("")
    folder.written(tmp_path / "file" / "below", b"content")
    assert (tmp_path / "file").read_text() == ""


def test_a_kernel_torn_on_disk_is_compiled_again(monkeypatch, tmp_path):
    class Library:
        @staticmethod
        def nvrtcVersion(*_):
            return 0

    compiled = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(nvrtc, "library", Library)
    monkeypatch.setattr(nvrtc, "_compile", lambda *_: compiled.append(1) or b"machine code")
    for _ in range(2):
        assert nvrtc.compiled("source", ("-DROWS=2",), "sm_90") == b"machine code"
    assert len(compiled) == 1
    (path,) = folder.cache_folder().iterdir()
    path.write_bytes(path.read_bytes()[:-3])
    assert nvrtc.compiled("source", ("-DROWS=2",), "sm_90") == b"machine code"
    assert len(compiled) == 2
