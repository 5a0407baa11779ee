"""Datasets of an HDF5 file that are links, and rows that cannot be numbered."""

import h5py
import numpy as np
import pytest

from hotlap.engine.data import DataMismatch, DataUnreadable, Hdf5, load_all


@pytest.fixture
def parts(tmp_path):
    with h5py.File(tmp_path / "parts.h5", "w") as file:
        file["before"] = np.arange(100.0)
        file["x"] = np.arange(50.0) + 1000
        file.create_dataset("chunked", data=np.arange(50.0) + 2000, chunks=(7,))
    return tmp_path / "parts.h5"


def linked(folder, **links):
    with h5py.File(folder / "main.h5", "w") as file:
        file["y"] = np.arange(50.0)
        file["after"] = np.zeros(5000)  # so that the place of x in its own file is inside this one
        for name, link in links.items():
            file[name] = link
    return folder / "main.h5"


@pytest.mark.parametrize(("name", "first"), [("x", 1000.0), ("chunked", 2000.0)])
def test_a_link_to_another_file_reads_that_file(tmp_path, parts, name, first):
    path = linked(tmp_path, x=h5py.ExternalLink("parts.h5", f"/{name}"))
    reader = Hdf5(path, "x", "y")
    assert (reader.maps[0] is None) == (name == "chunked")
    x, y = load_all(reader)
    assert np.array_equal(x, np.arange(50.0) + first)
    assert np.array_equal(y, np.arange(50.0))


def test_a_link_inside_the_file_is_followed(tmp_path):
    assert load_all(Hdf5(linked(tmp_path, z=h5py.SoftLink("/y")), "z"))[0][3] == 3.0


@pytest.mark.parametrize(
    ("link", "message"),
    [
        (h5py.SoftLink("/nope"), r"'z' is a link to '/nope', which cannot be opened"),
        (h5py.ExternalLink("gone.h5", "/x"), r"'z' is a link to '/x' in gone.h5, which cannot be opened"),
    ],
)
def test_a_broken_link_is_named_with_its_target(tmp_path, link, message):
    with pytest.raises(DataUnreadable, match=message):
        Hdf5(linked(tmp_path, z=link), "z")


def test_row_dims_must_fit_the_datasets(parts):
    with pytest.raises(DataMismatch, match="row_dims=0 must be at least 1"):
        Hdf5(parts, "x", row_dims=0)
    with pytest.raises(DataMismatch, match=r"fewer than row_dims=2 dimensions: {'x': \(50,\)}"):
        Hdf5(parts, "x", row_dims=2)
