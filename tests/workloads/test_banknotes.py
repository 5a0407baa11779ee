"""A small detector finds banknotes, and broken training shows in the mean average precision."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from once import made_once
from workload_modules import WORKLOADS, Outcome, outcome_of, run_in_process, run_script

NAME = "banknotes"
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def naive_run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, Path]:
    """One honest run, as a user starts it, shared by the tests that only look at it."""

    def train(out: Path) -> None:
        done = run_script(NAME, "naive.py", "--size", "tiny", "--out", str(out), data_root=folder.parents[1])
        (out / "printed.txt").write_text(done.stdout)

    out = made_once(tmp_path_factory, f"{NAME}-naive", train)
    return outcome_of((out / "printed.txt").read_text()), out


def test_several_processes_draw_the_same_pictures(workload, folder, tmp_path) -> None:
    """The report size is drawn by all cores; here two processes share a small size."""
    code = f"import data; data.PIXELS_PER_PROCESS = 100_000; data.ensure('tiny', 0, data.Path({str(tmp_path)!r}))"
    subprocess.run([sys.executable, "-c", code], cwd=WORKLOADS / NAME, check=True, timeout=600)
    shared = workload.data.default_folder("tiny", root=tmp_path)
    assert workload.cache.checksums(shared) == workload.cache.checksums(folder)


def test_an_unknown_size_is_rejected_with_the_known_ones(workload, tmp_path) -> None:
    with pytest.raises(ValueError, match=r"'huge'.*tiny, small, report"):
        workload.data.ensure("huge", root=tmp_path)


def test_pictures_and_labels_have_the_form_of_the_report(workload, folder) -> None:
    shape = workload.data.SHAPES["tiny"]
    images = sorted((folder / "train" / "images").glob("*.npy"))
    assert len(images) == shape.train_images
    classes = set()
    for path in images:
        image = np.load(path)
        assert image.shape == (shape.scenery.side, shape.scenery.side, 3)
        assert image.dtype == np.uint8
        for line in (folder / "train" / "labels" / f"{path.stem}.txt").read_text().splitlines():
            number, cx, cy, w, h = (float(value) for value in line.split())
            classes.add(int(number))
            assert w > 0
            assert h > 0
            assert cx - w / 2 > -1e-5
            assert cx + w / 2 < 1 + 1e-5
            assert cy - h / 2 > -1e-5
            assert cy + h / 2 < 1 + 1e-5
    assert classes == set(range(7))


def test_a_drawn_note_lies_inside_its_box(workload) -> None:
    """The pixels that the note changes lie where its label says."""
    render = workload.data.render
    for seed in range(5):
        rng = np.random.default_rng(seed)
        scenery = render.Scenery(side=160, most_notes=1, clutter=0, tilt=0.5)
        image = np.zeros((160, 160, 3), dtype=np.float32)
        centre, axes, box = render.place_note(rng, scenery, 0.7)
        render.draw_note(rng, image, 3, centre, axes, box)
        rows, columns = np.nonzero(image.any(axis=2))
        drawn = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        assert drawn == pytest.approx(box, abs=1.5)


def test_the_report_sized_model_has_seven_million_parameters(workload) -> None:
    model = workload.naive.build_model(workload.naive.defaults("report"))
    assert 6.8e6 < sum(parameter.numel() for parameter in model.parameters()) < 7.3e6
    with torch.no_grad():
        outputs = model.eval()(torch.zeros(1, 3, 64, 64))
    assert [tuple(output.shape) for output in outputs] == [(1, 3, n, n, 12) for n in (8, 4, 2)]


@pytest.mark.thorough
def test_naive_reaches_its_target_in_two_phases(workload, naive_run) -> None:
    outcome, out = naive_run
    assert outcome.reached
    assert (out / "last.pt").exists()
    assert (out / "best.pt").exists()
    frozen, everything = workload.naive.phases(workload.naive.defaults("tiny"))
    assert frozen.backbone_frozen
    assert frozen.learning_rate > everything.learning_rate


@pytest.mark.thorough
def test_limit_trains_what_naive_trains(workload, naive_run, common, capsys) -> None:
    """With the same batches in the same order the first losses agree to rounding, which training then magnifies."""
    expected, _ = naive_run
    outcome = run_in_process(workload.limit.main, capsys, *common)
    assert outcome.reached
    assert outcome.losses[0] == pytest.approx(expected.losses[0], rel=1e-3)
    assert outcome.losses == pytest.approx(expected.losses, rel=0.1)


@pytest.mark.thorough
def test_shuffled_labels_miss_the_target(workload, common, capsys, monkeypatch) -> None:
    build_datasets = workload.naive.build_datasets

    def with_shuffled_labels(folder: Path, settings):
        train, valid = build_datasets(folder, settings)
        order, notes = np.random.default_rng(0).permutation(len(train)), type(train).notes
        train.notes = lambda index: notes(train, int(order[index]))
        return train, valid

    monkeypatch.setattr(workload.naive, "build_datasets", with_shuffled_labels)
    outcome = run_in_process(workload.naive.main, capsys, *common, "--epochs", "4")
    assert outcome.final < workload.naive.TARGETS["tiny"] / 2


@pytest.mark.thorough
def test_dropped_gradients_miss_the_target(workload, common, capsys, answering) -> None:
    answering(torch.optim.AdamW, step=None)
    outcome = run_in_process(workload.naive.main, capsys, *common, "--epochs", "1")
    assert outcome.final < workload.naive.TARGETS["tiny"] / 2


def test_a_frozen_backbone_keeps_its_weights(workload, folder, tmp_path) -> None:
    naive = workload.naive
    settings = naive.defaults("tiny")
    phase = naive.phases(settings)[0]
    model = naive.build_model(settings)
    naive.freeze_backbone(model, phase.backbone_frozen)
    before = [parameter.clone() for parameter in model.parameters()]
    train, valid = naive.build_datasets(folder, settings)
    train.images = train.images[:8]
    loader, _ = naive.build_loaders(train, valid, settings)
    progress = naive.ProgressLog(tmp_path / "progress.jsonl", len(loader))
    naive.train_one_epoch(model, loader, naive.build_optimizer(model, settings, phase), CPU, progress, 0)
    backbone = len(list(model.backbone.parameters()))
    after = list(model.parameters())
    assert all(torch.equal(old, new) for old, new in zip(before[:backbone], after[:backbone], strict=True))
    assert not any(torch.equal(old, new) for old, new in zip(before[backbone:], after[backbone:], strict=True))


def test_padding_changes_no_loss_and_no_gradient(workload) -> None:
    naive = workload.naive
    maps = [torch.randn(2, 3, n, n, 12, generator=torch.Generator().manual_seed(n)) for n in (8, 4, 2)]
    notes = torch.tensor([[0, 2, 0.5, 0.4, 0.5, 0.3], [1, 6, 0.3, 0.7, 0.4, 0.25], [1, 0, 0.8, 0.2, 0.3, 0.2]])
    padding = torch.tensor([[0, -1.0, 0, 0, 0, 0], [1, -1.0, 0, 0, 0, 0]])
    results = []
    for targets in (notes, torch.cat((padding[:1], notes, padding[1:]))):
        leaves = tuple(level.clone().requires_grad_() for level in maps)
        loss = naive.loss_function(leaves, targets)
        loss.backward()
        results.append([loss.detach(), *(leaf.grad for leaf in leaves)])
    for plain, padded in zip(*results, strict=True):
        assert torch.allclose(plain, padded, atol=1e-6)
        assert torch.isfinite(padded).all()


def test_a_picture_without_notes_has_a_finite_loss(workload) -> None:
    maps = tuple(torch.randn(1, 3, n, n, 12, requires_grad=True) for n in (8, 4, 2))
    loss = workload.naive.loss_function(maps, torch.zeros(0, 6))
    loss.backward()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(level.grad).all() for level in maps)


def test_minimising_the_loss_finds_the_notes(workload) -> None:
    """Decoding inverts the targets of the loss: maps trained on two notes decode to these two notes."""
    naive, metrics = workload.naive, workload.naive.metrics
    notes = torch.tensor([[0, 2, 0.5, 0.4, 0.5, 0.3], [0, 6, 0.3, 0.75, 0.42, 0.26]])
    maps = tuple(torch.zeros(1, 3, n, n, 12, requires_grad=True) for n in (8, 4, 2))
    optimizer = torch.optim.Adam(maps, lr=0.1)
    for _ in range(60):
        optimizer.zero_grad()
        naive.loss_function(maps, notes).backward()
        optimizer.step()
    candidates = metrics.strongest(*metrics.decode(tuple(level.detach() for level in maps)))
    found = naive.one_by_one(*(column[0] for column in candidates))
    truth = naive.corners(notes[:, 1:]).numpy()
    assert metrics.mean_average_precision([found], [truth], 7) == pytest.approx(1.0)


def test_complete_iou_of_known_boxes(workload) -> None:
    complete_iou = workload.limit.naive.loss_terms.__globals__["complete_iou"]
    centre, size = torch.tensor([[1.0, 1.0]]), torch.tensor([[2.0, 2.0]])
    assert complete_iou(centre, size, centre, size).item() == pytest.approx(1.0, abs=1e-5)
    shifted = complete_iou(centre, size, centre + torch.tensor([[1.0, 0.0]]), size)
    assert shifted.item() == pytest.approx(1 / 3 - 1 / 13, abs=1e-5)  # the hull is 3 by 2


def test_batched_suppression_keeps_the_boxes_kept_for_each_picture(workload) -> None:
    naive, metrics = workload.naive, workload.naive.metrics
    random = torch.Generator().manual_seed(0)
    low = torch.rand(4, 60, 2, generator=random) * 0.5
    boxes = torch.cat((low, low + 0.1 + 0.4 * torch.rand(4, 60, 2, generator=random)), dim=2)
    confidences = torch.rand(4, 60, generator=random).sort(dim=1, descending=True).values
    classes = torch.randint(0, 2, (4, 60), generator=random)
    together = metrics.suppress_doubles(boxes, confidences, classes)
    assert 0 < together.sum() < together.numel()
    for number in range(4):
        alone = naive.one_by_one(boxes[number], confidences[number], classes[number])
        assert np.array_equal(alone.boxes, boxes[number][together[number]].numpy())


def test_mean_average_precision_matches_a_case_computed_by_hand(workload) -> None:
    """Class 0 has a hit, a miss and a hit of two notes: 1/2 * 1 + 1/2 * 2/3. The one note of class 1 is never found."""
    metrics = workload.naive.metrics
    first, second, nowhere = [0.0, 0.0, 0.2, 0.2], [0.5, 0.5, 0.9, 0.9], [0.3, 0.0, 0.4, 0.1]
    found = metrics.Detections(np.array([first, nowhere, second]), np.array([0.9, 0.8, 0.7]), np.array([0, 0, 0]))
    truth = np.array([[0, *first], [0, *second], [1, *nowhere]])
    assert metrics.class_average_precision([found], [truth], 0, 2) == pytest.approx(5 / 6)
    assert metrics.mean_average_precision([found], [truth], 7) == pytest.approx(5 / 12)


def test_a_note_counts_as_found_only_once(workload) -> None:
    box = np.array([[0.1, 0.1, 0.5, 0.5]])
    hits = workload.naive.metrics.match(np.repeat(box, 3, axis=0), box)
    assert hits.tolist() == [True, False, False]


@pytest.mark.thorough
def test_limit_evaluates_like_naive(workload, folder, naive_run) -> None:
    naive, limit = workload.naive, workload.limit
    settings = naive.defaults("tiny")
    model = naive.build_model(settings)
    model.load_state_dict(torch.load(naive_run[1] / "last.pt", weights_only=True)["model"])
    _, valid = naive.build_datasets(folder, settings)
    expected = naive.evaluate(model, valid, CPU, settings)
    assert expected == pytest.approx(naive_run[0].final, abs=1e-3)
    part = limit.load_resident(valid, CPU)
    assert limit.evaluate_resident(model, part, bfloat16=False) == pytest.approx(expected, abs=0.01)
