"""For every pattern: when and where it is found, its largest possible gain, and the advice."""

import ast
import math
from dataclasses import replace
from pathlib import Path

import pytest

import hotlap.diagnose
from hotlap import catalog
from hotlap.diagnose import diagnose
from hotlap.diagnose.cards import cards
from hotlap.diagnose.step import Step
from hotlap.records.observation import Ceiling, Observation
from tests.observations import (
    GPU,
    PROJECT,
    copy_site,
    device,
    hot_line,
    input_bound,
    kernel,
    launch_bound,
    loader,
    machine,
    memory,
    model,
    observation,
    on_cuda,
    optimizer,
    place,
    rank,
    settings,
    sync,
    sync_bound,
    two_ranks,
)


def found(seen: Observation, code: str):
    return [finding for finding in diagnose(seen).findings if finding.code == code]


def only(seen: Observation, code: str):
    (finding,) = found(seen, code)
    return finding


def waiting(share: float = 0.5, **overrides) -> Observation:
    """A CPU run of 10 ms a step that waits for data."""
    values = {"shares": {"data": share, "forward": 1.0 - share}, "ceiling": None} | overrides
    return observation(**values)


class TestBounds:
    def test_bounds_follow_amdahls_law(self):
        assert only(waiting(0.75), "data-wait").at_most == pytest.approx(4.0)
        assert only(waiting(0.75), "data-wait").ms_per_step == pytest.approx(7.5)

    def test_a_bound_never_goes_below_the_work_of_the_device(self):
        seen = on_cuda(
            shares={"sync": 0.9, "forward": 0.1}, device=device(5.0), syncs=(sync(waits=True, ms_per_step=9.0),)
        )
        finding = only(seen, "sync-in-loop")
        assert finding.at_most == pytest.approx(2.0)
        assert finding.ms_per_step == pytest.approx(5.0)

    def test_a_wait_hidden_behind_a_busy_device_is_not_a_finding(self):
        seen = on_cuda(
            shares={"sync": 0.9, "forward": 0.1}, device=device(9.9), syncs=(sync(waits=True, ms_per_step=9.0),)
        )
        assert found(seen, "sync-in-loop") == []

    def test_the_measured_ceiling_replaces_the_computed_bound(self):
        assert only(input_bound(), "data-wait").at_most == pytest.approx(3.4)

    def test_a_step_never_becomes_free(self):
        seen = observation(shares={"data": 1.0}, ceiling=None)
        assert only(seen, "data-wait").at_most == pytest.approx(100.0)

    def test_all_bounds_are_finite_and_at_least_one(self):
        for seen in (input_bound(), sync_bound(), launch_bound(), two_ranks()):
            for finding in diagnose(seen).findings:
                assert math.isfinite(finding.at_most)
                assert finding.at_most >= 1.0

    def test_what_the_verdict_is_about_comes_first_then_the_largest_bound(self):
        findings = diagnose(sync_bound()).findings
        own = [finding.code == "sync-in-loop" for finding in findings]
        assert own == sorted(own, reverse=True)
        assert sum(own) > 1
        for which in (True, False):
            bounds = [finding.at_most for finding, is_own in zip(findings, own, strict=True) if is_own is which]
            assert bounds == sorted(bounds, reverse=True)

    def test_a_verdict_and_the_first_finding_agree(self):
        seen = observation(shares={"data": 0.39, "forward": 0.16, "backward": 0.45}, ceiling=None)
        diagnosis = diagnose(seen)
        assert diagnosis.verdict == "input-bound"
        assert diagnosis.findings[0].code == "data-wait"

    def test_a_backward_takes_at_least_twice_its_forward(self):
        seen = observation(shares={"forward": 0.2, "backward": 0.8})
        assert only(seen, "slow-backward").ms_per_step == pytest.approx(4.0)
        assert found(observation(shares={"forward": 0.4, "backward": 0.6}), "slow-backward") == []

    def test_costs_below_two_percent_are_left_out(self):
        seen = observation(shares={"data": 0.015, "garbage": 0.015, "forward": 0.48, "backward": 0.49}, ceiling=None)
        assert diagnose(seen).findings == ()

    def test_under_a_verdict_about_computing_what_computes_comes_first(self):
        shares = {"rest": 0.1, "forward": 0.35, "backward": 0.5, "optimizer": 0.05}
        seen = observation(shares=shares, optimizers=(optimizer(fused=False),))
        assert diagnose(seen).verdict == "compute-bound"
        assert [finding.code for finding in diagnose(seen).findings] == ["unfused-optimizer", "rest"]

    @pytest.mark.parametrize(
        ("waiting", "workers", "faster", "explained"),
        [(0.9, 0, 20, True), (0.1, 0, 4.5, False), (0.1, 0, 1.3, True), (0.1, 0, 1, True), (0.1, 2, 4.5, True)],
    )
    def test_without_workers_a_ceiling_is_explained_by_the_wait_for_data(self, waiting, workers, faster, explained):
        seen = observation(
            shares={"data": waiting, "forward": 1.0 - waiting},
            loaders=(loader(workers=workers),),
            ceiling=Ceiling(samples_per_second=6400 * faster, step_ms=(10.0 / faster,), note=None),
        )
        assert Step(seen).explains_ceiling() is explained


class TestDataWait:
    def test_advises_enough_workers_to_cover_the_wait_and_no_more(self):
        # A batch takes 5 ms to make and 5 ms to use: one worker keeps up, and one is spare.
        advice = only(waiting(0.5), "data-wait").advice
        assert "num_workers=2, persistent_workers=True" in advice
        assert "torch.set_num_threads(6)" in advice

    def test_advises_fewer_workers_than_cores(self):
        advice = only(waiting(0.95, machine=machine(cores=4)), "data-wait").advice
        assert "num_workers=3" in advice
        assert "make a sample cheaper" in advice

    def test_a_worker_that_keeps_up_is_enough_where_no_core_is_left_for_a_spare_one(self):
        advice = only(waiting(0.3, machine=machine(cores=2)), "data-wait").advice
        assert "num_workers=1" in advice
        assert "make a sample cheaper" not in advice

    def test_on_one_core_workers_are_not_advised(self):
        advice = only(waiting(machine=machine(cores=1)), "data-wait").advice
        assert "num_workers" not in advice
        assert "make a sample cheaper" in advice

    def test_ranks_share_the_cores(self):
        seen = waiting(0.95, machine=machine(cores=8), ranks=(rank(0, 5.0), rank(1, 5.0)))
        assert "num_workers=3" in only(seen, "data-wait").advice

    def test_light_samples_need_whole_batches_not_workers(self):
        # 512 samples take 5 ms, so each takes 10 µs.
        advice = only(waiting(samples_per_step=512.0), "data-wait").advice
        assert "BatchSampler" in advice
        assert "num_workers" not in advice

    def test_an_iterable_dataset_must_split_its_stream(self):
        advice = only(waiting(loaders=(loader(dataset_kind="iterable"),)), "data-wait").advice
        assert "get_worker_info()" in advice

    def test_advises_more_workers_when_they_fall_behind(self):
        advice = only(waiting(0.5, loaders=(loader(workers=2, persistent_workers=True),)), "data-wait").advice
        assert "num_workers=4" in advice
        assert "persistent_workers" not in advice

    def test_advises_persistent_workers_when_they_restart_every_epoch(self):
        short = loader(workers=7, length=640, batch_size=64, batches=60)
        advice = only(waiting(loaders=(short,)), "data-wait").advice
        assert "persistent_workers=True" in advice
        assert "its workers are restarted every epoch" in advice

    def test_advises_pinned_memory_only_for_cuda(self):
        shares = {"data": 0.5, "forward": 0.5}
        assert "pin_memory" not in only(waiting(), "data-wait").advice
        seen = on_cuda(shares=shares, device=device(1.0), ceiling=None)
        assert "pin_memory=True" in only(seen, "data-wait").advice

    def test_prefetch_is_never_advised_without_workers(self):
        assert "prefetch" not in only(waiting(), "data-wait").advice

    def test_the_place_is_the_sampled_line_or_else_the_dataset(self):
        lines = (hot_line("data", 27), hot_line("forward", 3, share=0.9))
        assert only(waiting(hot_lines=lines), "data-wait").place.line == 27
        assert only(waiting(), "data-wait").place == place(31)

    def test_with_workers_the_waiting_line_is_not_the_slow_one(self):
        seen = waiting(loaders=(loader(workers=2),), hot_lines=(hot_line("data", 27),))
        assert only(seen, "data-wait").place == place(31)

    def test_the_evaluation_loader_is_not_blamed(self):
        seen = waiting(loaders=(loader(role="evaluation", workers=6, batches=900), loader(dataset="Mine")))
        assert "Mine with 0 workers" in only(seen, "data-wait").evidence


class TestCopies:
    def seen(self, **overrides) -> Observation:
        values = {"shares": {"copy": 0.4, "forward": 0.6}, "device": device(2.0), "copies": (copy_site(),)}
        return on_cuda(**values | overrides)

    def test_a_copy_from_pageable_memory_is_found(self):
        finding = only(self.seen(), "pageable-copy")
        assert finding.place.line == 35
        assert finding.at_most == pytest.approx(10 / 6)
        assert "pin_memory=True on the DataLoader" in finding.advice
        assert "non_blocking=True" in finding.advice

    def test_a_blocking_copy_from_pinned_memory_is_found(self):
        seen = self.seen(copies=(copy_site(pinned=True),))
        assert "non_blocking=True" in only(seen, "blocking-copy").advice

    def test_an_asynchronous_copy_from_pinned_memory_is_not_a_finding(self):
        seen = self.seen(copies=(copy_site(pinned=True, blocking=False),))
        assert found(seen, "blocking-copy") == found(seen, "pageable-copy") == []

    def test_a_loader_that_already_pins_is_not_advised_to(self):
        seen = self.seen(loaders=(loader(pin_memory=True),))
        assert "pin_memory() method" in only(seen, "pageable-copy").advice


class TestSyncs:
    def test_each_line_is_one_finding_most_costly_first(self):
        rows = (
            sync(line=5, waits=True, ms_per_step=1.0),
            sync(line=9, waits=True, ms_per_step=1.5),
            sync(line=9, waits=True, ms_per_step=1.0, kind="float"),
        )
        seen = on_cuda(shares={"sync": 0.35, "forward": 0.65}, device=device(2.0), syncs=rows)
        lines = found(seen, "sync-in-loop")
        assert [line.place.line for line in lines] == [9, 5]
        assert lines[0].title == ".item() and float() waits for the device"
        assert lines[0].at_most == pytest.approx(10 / 7.5)

    def test_a_sync_on_cpu_has_its_measured_cost_and_would_wait_on_cuda(self):
        seen = observation(syncs=(sync(ms_per_step=2.0),))
        finding = only(seen, "sync-in-loop")
        assert "would wait on CUDA" in finding.title
        assert finding.at_most == pytest.approx(1.25)

    def test_on_cpu_a_read_of_microseconds_is_not_a_finding(self):
        assert found(observation(syncs=(sync(ms_per_step=0.01),)), "sync-in-loop") == []

    @pytest.mark.parametrize(
        ("kind", "advice"),
        [("item", "loss.detach()"), ("bool", "torch.where"), ("print", "every N"), ("synchronize", "CUDA events")],
    )
    def test_advice_fits_the_call(self, kind, advice):
        seen = observation(syncs=(sync(kind=kind, ms_per_step=2.0),))
        assert advice in only(seen, "sync-in-loop").advice

    def test_a_library_that_reads_on_the_users_behalf_is_named(self):
        seen = observation(syncs=(sync(ms_per_step=2.0, via="metrics/f1.py:7"),))
        assert "metrics/f1.py:7" in only(seen, "sync-in-loop").advice

    def test_without_a_device_profile_the_evidence_states_the_doubt(self):
        seen = on_cuda(device=None, syncs=(sync(ms_per_step=2.0, waits=True),))
        assert "may be the device's own work" in only(seen, "sync-in-loop").evidence


class TestHost:
    def test_garbage_collection_is_found(self):
        finding = only(observation(shares={"garbage": 0.2, "forward": 0.8}), "garbage-collection")
        assert finding.at_most == pytest.approx(1.25)
        assert "gc.freeze()" in finding.advice

    def test_the_rest_is_placed_at_its_hot_line(self):
        seen = observation(shares={"rest": 0.3, "forward": 0.7}, hot_lines=(hot_line("rest", 77),))
        assert only(seen, "rest").place.line == 77

    def test_the_rest_says_what_it_includes_when_parts_were_not_seen(self):
        seen = observation(shares={"rest": 0.7, "backward": 0.3}, models=(), loaders=())
        assert "the forward pass" in only(seen, "rest").evidence
        assert "the making of batches" in only(seen, "rest").evidence

    def test_a_large_user_section_is_found(self):
        finding = only(observation(shares={"span:tokens": 0.5, "forward": 0.5}), "slow-span")
        assert "“tokens” takes 50 %" in finding.title

    def test_evaluation_bounds_the_window_and_never_the_step(self):
        seen = observation(20.0, shares={"evaluation": 0.5, "data": 0.25, "forward": 0.25}, ceiling=None)
        finding = only(seen, "evaluation-share")
        assert finding.at_most == pytest.approx(2.0)
        assert "not part of step speed" in finding.title
        assert "whole window" in finding.evidence
        # The evaluation takes 5 of the 10 ms of training, not 5 of 20.
        assert only(seen, "data-wait").at_most == pytest.approx(2.0)


class TestCompute:
    def test_forward_is_placed_at_its_hot_line_or_else_at_the_model(self):
        shares = {"forward": 0.6, "backward": 0.4}
        hot = observation(shares=shares, hot_lines=(hot_line("forward", 14), hot_line("forward", 9, share=0.1)))
        assert only(hot, "slow-forward").place.line == 14
        assert only(observation(shares=shares), "slow-forward").place == place(8, "model.py", "forward")

    def test_compile_is_not_advised_for_recurrent_layers(self):
        seen = observation(shares={"forward": 0.6, "backward": 0.4}, models=(model(layers={"LSTM": 1}),))
        assert "torch.compile skips" in only(seen, "slow-forward").advice

    def test_among_ranks_the_wait_is_in_backward(self):
        waits = replace(two_ranks(), shares={"data": 0.1, "forward": 0.2, "backward": 0.7})
        assert "ranks wait for each other" in only(waits, "slow-backward").advice

    def test_a_disproportionate_backward_is_found(self):
        seen = observation(shares={"forward": 0.1, "backward": 0.9})
        assert "anomaly mode" in only(seen, "slow-backward").advice

    def test_a_slow_optimizer_is_advised_to_be_fused(self):
        seen = observation(shares={"optimizer": 0.4, "forward": 0.6}, optimizers=(optimizer(fused=False),))
        finding = only(seen, "slow-optimizer")
        assert finding.at_most == pytest.approx(10 / 6)
        assert "fused=True" in finding.advice
        assert found(seen, "unfused-optimizer") == []

    def test_an_optimizer_that_is_already_fused_is_not_advised_to_be(self):
        seen = observation(shares={"optimizer": 0.4, "forward": 0.6})
        assert "fused=True" not in only(seen, "slow-optimizer").advice

    @pytest.mark.parametrize("name", ["Lion", "Adafactor"])
    def test_fused_is_not_advised_where_it_does_not_exist(self, name):
        mine = optimizer(name=name, fused=False, place=place(55, "/venv/site-packages/lib/o.py", "step"))
        seen = observation(shares={"optimizer": 0.4, "forward": 0.6}, optimizers=(mine,))
        assert "fused=True" not in only(seen, "slow-optimizer").advice

    def test_the_users_own_optimizer_is_named_by_its_line(self):
        mine = optimizer(name="AdamW", fused=False, place=place(55, "optim.py", "step"))
        seen = observation(shares={"optimizer": 0.4, "forward": 0.6}, optimizers=(mine,))
        finding = only(seen, "slow-optimizer")
        assert finding.place == place(55, "optim.py", "step")
        assert "your own code" in finding.advice

    def test_an_unfused_optimizer_of_little_cost_is_mentioned(self):
        seen = observation(optimizers=(optimizer(fused=False),))
        assert only(seen, "unfused-optimizer").at_most == pytest.approx(10 / 9.2)
        assert found(observation(), "unfused-optimizer") == []

    def test_launch_overhead_is_found(self):
        finding = only(launch_bound(), "launch-overhead")
        assert finding.at_most == pytest.approx(10 / 1.8)
        assert "840 launches" in finding.title
        assert "10.7 µs a launch" in finding.evidence

    def test_no_launch_overhead_with_a_busy_device_or_few_launches(self):
        assert found(on_cuda(), "launch-overhead") == []
        few = on_cuda(shares={"forward": 1.0}, device=device(1.0, launches_per_step=10.0))
        assert found(few, "launch-overhead") == []


class TestSettings:
    def test_anomaly_mode_is_found_however_little_it_costs(self):
        seen = waiting(0.99, settings=settings(anomaly_mode=True))
        assert found(seen, "anomaly-mode")
        assert found(observation(), "anomaly-mode") == []

    @pytest.mark.parametrize(("layer", "autocast", "expected"), [
        ("LSTM", "bfloat16", 1), ("GRU", "torch.float16", 1), ("LSTM", None, 0), ("Linear", "bfloat16", 0),
    ])  # fmt: skip
    def test_recurrent_layers_under_autocast_are_found(self, layer, autocast, expected):
        seen = on_cuda(
            models=(model(device="cuda:0", layers={layer: 2}),),
            settings=settings(autocast=autocast),
            device=device(9.0, kernels=(kernel("recurrent", 0.8, busy=9.0),)),
        )
        assert len(found(seen, "autocast-recurrent")) == expected
        if expected:  # the device itself has less to do, so its busy time is no lower bound
            assert only(seen, "autocast-recurrent").at_most == pytest.approx(10 / 2.8)

    @pytest.mark.parametrize(("layout", "autocast", "expected"), [
        ("contiguous", "float16", 1), ("channels_last", "float16", 0), ("contiguous", None, 0),
    ])  # fmt: skip
    def test_advises_channels_last_for_half_precision_convolutions(self, layout, autocast, expected):
        seen = on_cuda(
            models=(model(device="cuda:0", layers={"Conv2d": 9}, memory_format=layout),),
            settings=settings(autocast=autocast),
            device=device(9.0, kernels=(kernel("convolution", 0.8, busy=9.0),)),
        )
        assert len(found(seen, "channels-last")) == expected

    def test_channels_last_is_never_advised_on_cpu(self):
        seen = observation(
            models=(model(layers={"Conv2d": 9}, memory_format="contiguous"),), settings=settings(autocast="bfloat16")
        )
        assert found(seen, "channels-last") == []

    @pytest.mark.parametrize(("gpu", "expected"), [(GPU, 1), ("Tesla V100-SXM2-16GB", 0), ("RTX 6000 Ada", 1)])
    def test_advises_tf32_where_the_gpu_has_it(self, gpu, expected):
        seen = on_cuda(settings=settings(matmul_precision="highest"), machine=machine(gpu=gpu, gpus=1))
        assert len(found(seen, "tf32-off")) == expected

    def test_tf32_is_not_advised_for_half_precision_or_cpu(self):
        off = {"matmul_precision": "highest", "cudnn_tf32": False}
        assert found(on_cuda(settings=settings(**off, autocast="bfloat16")), "tf32-off") == []
        assert found(observation(settings=settings(**off)), "tf32-off") == []

    def test_without_a_profile_the_gain_is_not_known(self):
        seen = on_cuda(settings=settings(matmul_precision="highest"), device=None)
        assert only(seen, "tf32-off").at_most == 1.0

    def test_more_threads_and_workers_than_cores_are_found(self):
        seen = observation(loaders=(loader(workers=2),))
        assert "torch.set_num_threads(6)" in only(seen, "threads-oversubscribed").advice
        assert found(observation(), "threads-oversubscribed") == []

    def test_with_a_device_only_workers_compete_for_cores(self):
        assert found(on_cuda(loaders=(loader(workers=12),)), "threads-oversubscribed") == []
        seen = on_cuda(loaders=(loader(workers=24),))
        assert "num_workers=15" in only(seen, "threads-oversubscribed").advice

    def test_memory_near_its_limit_is_found(self):
        full = memory(peak_device_mb=75_000.0, total_device_mb=80_000.0)
        assert "94 % full" in only(on_cuda(memory=full), "memory-near-limit").title
        assert found(on_cuda(), "memory-near-limit") == []


class TestRanks:
    def test_the_slowest_rank_is_named_with_its_extra_work(self):
        finding = only(two_ranks(), "straggler-rank")
        assert "rank 1 does 40 % more work" in finding.title
        assert "1.6 ms of the difference in data" in finding.evidence
        assert finding.at_most == pytest.approx(10 / 8.4)

    @pytest.mark.parametrize("ranks", [(), (rank(0, 5.0),), (rank(0, 5.0), rank(1, 5.1))])
    def test_even_ranks_are_not_a_finding(self, ranks):
        assert found(observation(ranks=ranks), "straggler-rank") == []


def test_a_healthy_run_has_nothing_to_fix():
    assert {finding.code for finding in diagnose(observation()).findings} == set()


def test_no_finding_names_a_line_outside_the_project():
    for finding in diagnose(input_bound()).findings:
        assert finding.place is None or finding.place.file.startswith(PROJECT)


def test_a_ceiling_that_was_not_measured_leaves_the_computed_bound():
    note = Ceiling(samples_per_second=None, step_ms=(), note="the loader is an iterable of streams")
    assert only(waiting(0.5, ceiling=note), "data-wait").at_most == pytest.approx(2.0)


def codes() -> set[str]:
    """The codes in every call that makes a finding."""
    strings: set[str] = set()
    for path in Path(hotlap.diagnose.__file__).parent.glob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2].lower().endswith("finding"):
                given = [*call.args[:2], *(keyword.value for keyword in call.keywords if keyword.arg == "code")]
                strings |= {part.value for arg in given for part in ast.walk(arg) if isinstance(part, ast.Constant)}
    return {text for text in strings if isinstance(text, str)}


def test_every_finding_can_be_explained():
    assert len(codes()) > 15
    for code in codes():
        assert code in cards() or catalog.card(code), code


def test_every_finding_that_is_explained_exists():
    assert set(cards()) <= codes()
