"""After the timed window, samples of stacks and a trace show where time goes."""

from __future__ import annotations

import sys
import threading
import warnings

import pytest
import torch

from hotlap.observe.look import LineSampler, Look, Tracer
from hotlap.observe.trace import read_trace
from hotlap.records.observation import BACKWARD, FORWARD, REST


def test_the_sampler_finds_the_current_line_of_the_training_thread_and_its_phase():
    sampler = LineSampler(threading.get_ident(), lambda: FORWARD)
    sampler.start()
    line = sys._getframe().f_lineno + 2
    while line not in [call.line for call, _ in list(sampler._samples)]:  # the first may show the start of the sampler
        threading.Event().wait(0.001)
    sampler.stop()
    row = next(row for row in sampler.rows(8.0, {FORWARD: 0.5}) if row.line == line)
    assert (row.file, row.phase) == (__file__, FORWARD)
    assert row.function.endswith("test_the_sampler_finds_the_current_line_of_the_training_thread_and_its_phase")
    assert row.ms_per_step == row.share * 8.0
    assert sum(row.share for row in sampler.rows(8.0, {FORWARD: 0.5})) <= 0.5 + 1e-9, "as long as the phase"
    assert "hotlap-sampler" not in {thread.name for thread in threading.enumerate()}


def test_a_sampler_without_samples_reports_nothing():
    assert LineSampler(threading.get_ident(), lambda: FORWARD).rows(8.0, {FORWARD: 0.5}) == ()


def test_a_trace_is_saved_to_the_given_path_and_shows_no_device_on_cpu(tmp_path):
    tracer = Tracer(torch, tmp_path / "trace" / "one.pt.trace.json", on_cuda=False, whole=True)
    assert not tracer.saved
    tracer.start(lambda: None)
    (torch.ones(2, 2) @ torch.ones(2, 2)).sum()
    tracer.stop()
    assert tracer.saved
    assert "aten::matmul" in tracer.path.read_text()
    assert read_trace(tracer.path, steps=1, mean_step_ms=1.0) is None


def test_a_trace_adds_no_warning_and_does_not_reset_the_warning_registry(tmp_path, recwarn):
    def warn_once_here():
        warnings.warn("mine", UserWarning, stacklevel=1)

    warnings.simplefilter("default")
    warn_once_here()
    tracer = Tracer(torch, tmp_path / "one.pt.trace.json", on_cuda=False, whole=True)
    tracer.start(lambda: None)
    tracer.stop()
    warn_once_here()
    assert [str(warning.message) for warning in recwarn.list] == ["mine"]


def test_a_trace_ends_when_the_program_starts_its_own_profiler(tmp_path):
    look, cpu = Look(), [torch.profiler.ProfilerActivity.CPU]
    assert look.at_kernels(torch, tmp_path / "one.pt.trace.json", on_cuda=False, whole=True)
    with torch.profiler.profile(activities=cpu) as profile:
        assert not look.tracing
        assert look.tracer.saved
        assert not Look().at_kernels(torch, tmp_path / "two.pt.trace.json", on_cuda=False, whole=True)
        torch.ones(2).sum()
    assert "aten::sum" in [average.key for average in profile.key_averages()]


class Frozen(torch.nn.Module):
    def forward(self, stop):
        stop.wait()
        return stop


def test_a_module_that_is_called_outside_every_phase_counts_as_forward():
    sampler, stop = LineSampler(threading.get_ident(), lambda: REST), threading.Event()
    sampler.start()
    while not sampler._rest:
        threading.Event().wait(0.001)
    called = threading.Timer(0.0, lambda: (_until(lambda: sampler._unseen_forward >= 3), stop.set()))
    called.start()
    Frozen()(stop)
    sampler.stop()
    called.join()
    shares = sampler.with_every_forward({REST: 0.5, FORWARD: 0.25, BACKWARD: 0.25})
    assert shares[FORWARD] > 0.25
    assert shares[REST] + shares[FORWARD] == pytest.approx(0.75)
    assert shares[BACKWARD] == 0.25
    waiting = Frozen.forward.__code__.co_firstlineno + 1
    assert {row.phase for row in sampler.rows(8.0, shares) if row.line == waiting} == {FORWARD}


def _until(happened):
    while not happened():
        threading.Event().wait(0.001)
