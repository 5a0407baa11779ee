"""A few numbers shared through a small mapped file."""

from __future__ import annotations

from hotlap.records.progress import DONE, STATE_NAMES, STOPPING, TIMING, Progress, ProgressWriter, read_progress


def test_what_is_written_is_read_at_once_from_elsewhere(tmp_path):
    path = tmp_path / "progress.bin"
    writer = ProgressWriter(path)
    for steps in (1, 2, 10**12):
        progress = Progress(
            state=TIMING, rank=3, fraction=0.25, steps=steps, batches=4, backwards=5, optimizers=1, loaders=2
        )
        writer.write(progress)
        assert read_progress(path) == progress


def test_a_fresh_file_says_that_nothing_has_happened(tmp_path):
    path = tmp_path / "progress.bin"
    ProgressWriter(path)
    assert read_progress(path) == Progress(0, 0, 0.0, 0, 0, 0, 0, 0)


def test_a_file_cut_short_says_nothing(tmp_path):
    path = tmp_path / "progress.bin"
    path.write_bytes(b"\x01")
    assert read_progress(path) is None


def test_every_state_has_a_name():
    assert STATE_NAMES[DONE] == "done"
    assert len(STATE_NAMES) == STOPPING + 1
