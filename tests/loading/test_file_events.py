"""Linux tells at once of files that change, whoever writes them."""

import os
import subprocess
import sys

import pytest

from hotlap.loading.files import FileEvents

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells of changes")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "below").mkdir()
    for name in ("a.npy", "b.npy", "below/c.npy"):
        (tmp_path / name).write_bytes(b"1")
    return tmp_path


def watching(folder, *names):
    paths = [str(folder / name) for name in names]
    return FileEvents(paths, map(os.path.realpath, paths), [path for path in paths if os.path.isdir(path)])


def test_a_write_by_another_process_is_told_once(folder):
    events = watching(folder, "a.npy", "below/c.npy")
    assert not events.have_come()
    subprocess.run(["cp", str(folder / "b.npy"), str(folder / "below" / "c.npy")], check=True)
    assert events.have_come()
    assert not events.have_come()


def test_other_files_of_the_folder_do_not_count(folder):
    events = watching(folder, "a.npy")
    (folder / "b.npy").write_bytes(b"2")
    (folder / "log.txt").write_bytes(b"3")
    assert not events.have_come()


def test_new_files_of_a_folder_that_is_listed_count(folder):
    events = watching(folder, "a.npy", "below")
    (folder / "below" / "new.npy").write_bytes(b"2")
    assert events.have_come()


def test_a_link_that_leads_elsewhere_and_the_file_it_leads_to_count(folder):
    (folder / "link.npy").symlink_to("below/c.npy")
    events = watching(folder, "link.npy")
    (folder / "below" / "c.npy").write_bytes(b"2")
    assert events.have_come()
    (folder / "link.npy").unlink()
    assert events.have_come()


def test_a_descriptor_that_is_the_programs_by_now_is_not_read(folder):
    events = watching(folder, "a.npy")
    ours = events._descriptor
    reading, writing = os.pipe()
    os.write(writing, b"of the program")
    os.dup2(reading, ours)  # as after os.closerange
    try:
        with pytest.raises(OSError, match="not ours any more"):
            events.have_come()
        events.close()
        assert os.read(ours, 100) == b"of the program"
    finally:
        for descriptor in (reading, writing, ours):
            os.close(descriptor)
