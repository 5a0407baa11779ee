"""Progress is shared with another process through a small mapped file."""

from __future__ import annotations

from hotlap.records.progress import DONE, STATE_NAMES, STOPPING, TIMING, Progress, ProgressWriter, read_progress


def test_a_written_value_is_read_at_once_by_a_reader(tmp_path):
    path = tmp_path / "progress.bin"
    writer = ProgressWriter(path)
    for steps in (1, 2, 10**12):
        progress = Progress(
            state=TIMING, rank=3, fraction=0.25, steps=steps, batches=4, backwards=5, optimizers=1, loaders=2
        )
        writer.write(progress)
        assert read_progress(path) == progress


def test_a_new_file_shows_no_progress(tmp_path):
    path = tmp_path / "progress.bin"
    ProgressWriter(path)
    assert read_progress(path) == Progress(0, 0, 0.0, 0, 0, 0, 0, 0)


def test_a_truncated_file_gives_nothing(tmp_path):
    path = tmp_path / "progress.bin"
    path.write_bytes(b"\x01")
    assert read_progress(path) is None


def test_every_state_has_a_name():
    assert STATE_NAMES[DONE] == "done"
    assert len(STATE_NAMES) == STOPPING + 1
