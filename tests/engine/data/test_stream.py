"""Streamed data: the requested rows in order, bounded memory, errors that name file and row, no threads left over."""

import threading
import time

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
import torch

from hotlap.engine.data import (
    Arrays,
    Arrow,
    ChainReader,
    Column,
    Csv,
    DataMismatch,
    DataUnreadable,
    EmptySplit,
    Hdf5,
    NpyFolder,
    PackageMissing,
    Parquet,
    Stream,
    ZipReader,
    load_all,
    mapped,
    subset,
)  # fmt: skip

CPU = torch.device("cpu")
ROWS = 53
TABLE = np.arange(ROWS * 6, dtype=np.float32).reshape(ROWS, 6)
LABELS = np.arange(ROWS, dtype=np.int64) * 3


def npy(folder):
    np.save(folder / "x.npy", TABLE)
    np.save(folder / "y.npy", LABELS)
    return Arrays(folder / "x.npy", folder / "y.npy")


def npy_folder(folder):
    for row in range(ROWS):
        np.save(folder / f"{row:03d}.npy", TABLE[row])
    return ZipReader(NpyFolder(folder), Arrays(LABELS))


def hdf5(folder, **options):
    with h5py.File(folder / "data.h5", "w") as file:
        file.create_dataset("x", data=TABLE, **options)
        file.create_dataset("y", data=LABELS)
    return Hdf5(folder / "data.h5", "x", "y")


def chunked(folder):
    return hdf5(folder, chunks=(5, 6), compression="gzip")


def parquet(folder):
    table = pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(TABLE.reshape(-1)), 6), "y": LABELS})
    pa.parquet.write_table(table, folder / "data.parquet", row_group_size=7)
    return Parquet(folder / "data.parquet", "x", "y", keep_bytes=500)


def arrow(folder):
    table = pa.table({"x": [row.tolist() for row in TABLE], "y": LABELS})
    table = table.set_column(0, "x", table["x"].cast(pa.list_(pa.float32())))
    pa.feather.write_feather(table, folder / "data.arrow", compression="uncompressed", chunksize=20)
    return Arrow(folder / "data.arrow", "x", "y")


def halves(folder):
    return ChainReader(Arrays(TABLE[:20], LABELS[:20]), Arrays(TABLE[20:], LABELS[20:]))


FORMATS = [npy, npy_folder, hdf5, chunked, parquet, arrow, halves]


@pytest.mark.parametrize("make", FORMATS)
@pytest.mark.parametrize("drop_last", [False, True])
def test_every_format_gives_the_rows_in_the_requested_order(make, drop_last, tmp_path):
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(0))
    batches = list(Stream(make(tmp_path), threads=3).batches(order, 8, CPU, drop_last))
    expected_order = order[: ROWS // 8 * 8] if drop_last else order
    assert [len(x) for x, _ in batches] == [8] * 6 + ([] if drop_last else [5])
    assert torch.equal(torch.cat([x for x, _ in batches]), torch.from_numpy(TABLE)[expected_order])
    assert torch.equal(torch.cat([y for _, y in batches]), torch.from_numpy(LABELS)[expected_order])


@pytest.mark.parametrize("make", FORMATS)
def test_every_format_can_be_loaded_whole_and_repeats_rows(make, tmp_path):
    reader = make(tmp_path)
    x, y = load_all(reader, block_bytes=300)
    assert np.array_equal(x, TABLE)
    assert np.array_equal(y, LABELS)
    (_, repeated), *_ = Stream(reader).batches(torch.tensor([9, 9, 0]), 3, CPU)
    assert repeated.tolist() == [27, 27, 0]


def test_rows_of_several_dimensions_are_numbered_together(tmp_path):
    mel = np.random.default_rng(0).random((4, 2, 3, 5)).astype(np.float32)
    labels = np.arange(24).reshape(4, 2, 3)
    with h5py.File(tmp_path / "mel.h5", "w") as file:
        file.create_dataset("mel", data=mel, chunks=(1, 2, 3, 5))
        file.create_dataset("label", data=labels)
    reader = Hdf5(tmp_path / "mel.h5", "mel", "label", row_dims=3)
    order = torch.randperm(24)
    ((segments, numbers),) = Stream(reader).batches(order, 24, CPU)
    assert torch.equal(segments, torch.from_numpy(mel.reshape(24, 5))[order])
    assert torch.equal(numbers, order)


def test_a_stream_casts_on_the_device_and_takes_subsets_and_maps():
    source = Stream(Arrays(np.arange(10, dtype=np.uint8)), dtypes=[torch.float32])
    doubled = mapped(subset(source, [8, 2, 5]), lambda numbers: numbers * 2)
    ((batch,),) = doubled.batches(torch.tensor([2, 0]), 2, CPU)
    assert batch.tolist() == [10.0, 16.0]
    assert batch.dtype == torch.float32


class Watched:
    """A reader that counts, waits and fails as configured."""

    columns = (Column((), np.dtype(np.int64)),)

    def __init__(self, rows=1000, fail_at=None, wait=None, error=None):
        self.rows, self.fail_at, self.wait = rows, fail_at, wait
        self.error = error or RuntimeError("broken")
        self.reading, self.most, self.read_rows = 0, 0, 0
        self.lock = threading.Lock()

    def read(self, rows, out):
        with self.lock:
            self.read_rows += len(rows)
        if self.wait:
            self.wait.wait()
        if self.fail_at is not None and self.fail_at in rows:
            raise self.error
        out[0][:] = rows


def threads_reading():
    return [thread for thread in threading.enumerate() if thread.name.startswith("hotlap-read")]


def test_no_more_is_read_ahead_than_allowed():
    reader = Watched()
    batches = Stream(reader, threads=2, ahead=3).batches(torch.arange(1000), 10, CPU)
    next(batches)
    deadline = time.monotonic() + 5
    while reader.read_rows < 40 and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(0.02)
    assert reader.read_rows == 40  # the batch taken, and three ahead of it
    batches.close()
    assert threads_reading() == []


def test_an_error_in_a_thread_reaches_the_trainer_after_the_batches_before_it():
    batches = Stream(Watched(fail_at=25), threads=3).batches(torch.arange(1000), 10, CPU)
    assert [next(batches)[0][0].item() for _ in range(2)] == [0, 10]
    with pytest.raises(DataUnreadable, match="row 20: RuntimeError: broken") as caught:
        next(batches)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert threads_reading() == []


def test_abandoning_a_stream_ends_its_threads():
    for number, _ in enumerate(Stream(Watched(), threads=2).batches(torch.arange(1000), 10, CPU)):
        if number == 3:
            break
    assert threads_reading() == []


def test_an_interrupt_while_waiting_ends_the_threads(monkeypatch):
    from hotlap.engine.data.stream import Shelf

    gate = threading.Event()
    reader = Watched(wait=gate)
    taken = []

    def interrupted(self, number):
        taken.append(number)
        gate.set()
        raise KeyboardInterrupt

    monkeypatch.setattr(Shelf, "take", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(Stream(reader).batches(torch.arange(100), 10, CPU))
    assert taken == [0]
    assert threads_reading() == []


def test_rejects_rows_that_a_stream_does_not_have():
    with pytest.raises(DataMismatch, match="rows 0 … 10"):
        next(Stream(Arrays(np.arange(10))).batches(torch.tensor([0, 10]), 2, CPU))
    assert list(Stream(Arrays(np.arange(10))).batches(torch.zeros(0, dtype=torch.int64), 2, CPU)) == []


def cut(path, share=0.5):
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])


def test_names_a_truncated_file(tmp_path):
    npy(tmp_path)
    cut(tmp_path / "x.npy")
    with pytest.raises(DataUnreadable, match=r"x\.npy: it is cut short"):
        Arrays(tmp_path / "x.npy")
    hdf5(tmp_path).close()
    cut(tmp_path / "data.h5", 0.9)
    with pytest.raises(DataUnreadable, match=r"data\.h5: it is cut short"):
        Hdf5(tmp_path / "data.h5")
    parquet(tmp_path)
    cut(tmp_path / "data.parquet")
    with pytest.raises(DataUnreadable, match=r"data\.parquet: it is not a Parquet file, or it is cut short"):
        Parquet(tmp_path / "data.parquet")
    arrow(tmp_path)
    cut(tmp_path / "data.arrow")
    with pytest.raises(DataUnreadable, match=r"data\.arrow: it is not an Arrow file, or it is cut short"):
        Arrow(tmp_path / "data.arrow")


@pytest.mark.parametrize(
    ("kind", "message"), [(Arrays, "not a .npy"), (Hdf5, "not an HDF5"), (Parquet, "not a Parquet")]
)
def test_names_a_missing_file_or_one_of_another_format(kind, message, tmp_path):
    (tmp_path / "other").write_text("no data at all, just some words")
    with pytest.raises(DataUnreadable, match=message):
        kind(tmp_path / "other")
    with pytest.raises(DataUnreadable, match="missing: there is no such file"):
        kind(tmp_path / "missing")


def test_names_one_bad_file_of_a_folder_with_its_row(tmp_path):
    reader = npy_folder(tmp_path)
    cut(tmp_path / "031.npy", 0.8)
    with pytest.raises(DataUnreadable, match=r"031\.npy, row 31: it is cut short"):
        list(Stream(reader).batches(torch.arange(ROWS), 8, CPU))
    np.save(tmp_path / "031.npy", TABLE[31].astype(np.float64))
    with pytest.raises(DataUnreadable, match=r"031\.npy, row 31: it is float64 \(6,\), but the first file is float32"):
        list(Stream(reader).batches(torch.arange(ROWS), 8, CPU))


def test_names_a_damaged_chunk_by_file_and_row(tmp_path):
    reader = hdf5(tmp_path, chunks=(5, 6), compression="gzip", fletcher32=True)
    place = reader.datasets[0].id.get_chunk_info(2)
    reader.close()
    with (tmp_path / "data.h5").open("r+b") as file:
        file.seek(place.byte_offset)
        file.write(b"\xff" * place.size)
    with pytest.raises(DataUnreadable, match=r"data\.h5, row 10: /x"):
        list(Stream(Hdf5(tmp_path / "data.h5", "x")).batches(torch.arange(ROWS), 8, CPU))


def test_a_missing_dataset_or_column_is_reported_with_those_that_exist(tmp_path):
    hdf5(tmp_path).close()
    with pytest.raises(DataUnreadable, match=r"no dataset 'X'.*It has: x, y"):
        Hdf5(tmp_path / "data.h5", "X")
    parquet(tmp_path)
    with pytest.raises(DataUnreadable, match=r"no column 'z'; it has: x, y"):
        Parquet(tmp_path / "data.parquet", "z")


def test_rejects_missing_values_uneven_lists_and_text(tmp_path):
    path = tmp_path / "odd.parquet"
    pa.parquet.write_table(pa.table({"gap": [1, None], "uneven": [[1], [2, 3]], "text": ["a", "b"]}), path)
    with pytest.raises(DataUnreadable, match="'gap' has 1 missing"):
        Parquet(path, "gap")
    with pytest.raises(DataUnreadable, match="'uneven' differ in length"):
        Parquet(path, "uneven")
    with pytest.raises(DataMismatch, match="'text' holds object, not numbers"):
        Parquet(path, "text")


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([[[1, 2, 3]], [[7]]], r"row 1: column 'x' is float32 \(1,\) from here on, but float32 \(3,\) before"),
        ([[[1, 2, 3]], [[7, 8]]], r"column 'x' is float32 \(2,\) from here on"),
        ([[[1, 2, 3]], [[7, None, 9]]], "row 1: the lists in column 'x' have 1 missing values"),
        ([[[1, None, 3]]], "row 0: the lists in column 'x' have 1 missing values"),
    ],
)
def test_rejects_lists_that_change_or_have_gaps_within_a_file(groups, message, tmp_path):
    schema = pa.schema([("x", pa.list_(pa.float32()))])
    with pa.parquet.ParquetWriter(tmp_path / "odd.parquet", schema) as file:
        for rows in groups:
            file.write_table(pa.table({"x": rows}, schema))
    with pytest.raises(DataUnreadable, match=message):
        load_all(Parquet(tmp_path / "odd.parquet"))


def test_a_group_of_an_hdf5_file_is_not_mistaken_for_a_dataset(tmp_path):
    path = tmp_path / "groups.h5"
    with h5py.File(path, "w") as file:
        file["inner/x"] = np.arange(3)
    with pytest.raises(DataUnreadable, match="no dataset at the top; it has: inner/x"):
        Hdf5(path)
    with pytest.raises(DataUnreadable, match="'inner' is a group, not a dataset; name what is in it: inner/x"):
        Hdf5(path, "inner")
    with h5py.File(path, "a") as file:
        file["y"] = np.arange(3)
    assert load_all(Hdf5(path))[0].tolist() == load_all(Hdf5(path, "inner/x"))[0].tolist() == [0, 1, 2]


def test_rejects_readers_that_do_not_fit_together(tmp_path):
    with pytest.raises(DataMismatch, match="same number of rows"):
        ZipReader(Arrays(TABLE), Arrays(LABELS[:3]))
    with pytest.raises(DataMismatch, match="same columns"):
        ChainReader(Arrays(TABLE), Arrays(LABELS))
    with pytest.raises(EmptySplit, match=r"no file \*\.npy"):
        NpyFolder(tmp_path)
    with pytest.raises(EmptySplit, match="empty"):
        Stream(Arrays(TABLE[:0]))


def test_a_missing_package_is_named_with_the_command_to_install_it(monkeypatch, tmp_path):
    import sys

    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(PackageMissing, match="needs h5py; type: pip install h5py"):
        Hdf5(tmp_path / "data.h5")


class LateCopy:
    """An event and its copy, which reads the host memory only when somebody waits for it."""

    def __init__(self, place, rows):
        self.place, self.rows, self.queries = place, rows, 0
        self.batch = tuple(torch.empty_like(tensor[:rows]) for tensor in place.tensors)

    def finish(self):
        if self.place is not None:
            for target, source in zip(self.batch, self.place.tensors, strict=True):
                target.copy_(source[: self.rows])
            self.place = None

    def query(self):
        self.queries += 1
        if self.queries > 2:  # the first looks find the copy still under way
            self.finish()
        return self.place is None

    def synchronize(self):
        self.finish()


class OneStream:
    def wait_event(self, event):
        event.finish()


@pytest.fixture
def late_copies(monkeypatch, answering):
    """The device's side of a stream, on the CPU: copies read their pinned memory as late as allowed."""
    from hotlap.engine.data import stream

    made = []

    def copy(place, rows, device, side):
        made.append(LateCopy(place, rows))
        return made[-1].batch, made[-1]

    def place(self, rows):
        tensors = tuple(torch.empty((rows, *c.shape), dtype=stream.torch_dtype(c.dtype)) for c in self.reader.columns)
        return stream.HostBatch(tuple(tensor.numpy() for tensor in tensors), tensors)

    monkeypatch.setattr(stream, "copy", copy)
    monkeypatch.setattr(stream.Shelf, "_place", place)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: OneStream())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: OneStream())
    answering(torch.Tensor, record_stream=None)
    return made


@pytest.mark.parametrize("ahead", [2, 3, 8])
@pytest.mark.parametrize("threads", [1, 3])
def test_host_memory_is_reused_only_after_its_copy(late_copies, ahead, threads):
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(1))
    source = Stream(Arrays(TABLE, LABELS), threads=threads, ahead=ahead)
    batches = list(source.batches(order, 4, torch.device("cuda")))
    assert torch.equal(torch.cat([x for x, _ in batches]), torch.from_numpy(TABLE)[order])
    assert torch.equal(torch.cat([y for _, y in batches]), torch.from_numpy(LABELS)[order])
    assert len(late_copies) == 14
    assert threads_reading() == []


def test_an_error_ahead_of_the_training_waits_for_its_turn(late_copies):
    batches = Stream(Watched(fail_at=25), threads=3).batches(torch.arange(1000), 10, torch.device("cuda"))
    assert [next(batches)[0][0].item() for _ in range(2)] == [0, 10]
    with pytest.raises(DataUnreadable, match="row 20"):
        next(batches)
    assert threads_reading() == []


def test_columns_of_a_csv_folder_are_put_beside_each_other(tmp_path):
    for number in range(2):
        lines = ["a,b,c,label,name", *(f"{row},{row + 0.5},{2 * row},{row % 3},x" for row in range(5))]
        (tmp_path / f"{number}.csv").write_text("\n".join(lines))
    reader = ChainReader(*(Csv(path, ("a", "b", "c"), "label") for path in sorted(tmp_path.glob("*.csv"))))
    features, labels = load_all(reader)
    assert features.tolist() == [[row, row + 0.5, 2 * row] for row in range(5)] * 2
    assert labels.tolist() == [0, 1, 2, 0, 1] * 2
    with pytest.raises(DataUnreadable, match=r"it has no column 'd'; it has: a, b, c, label, name"):
        Csv(tmp_path / "0.csv", ("a", "d"))
    with pytest.raises(DataMismatch, match="column 'name' holds object; only numbers can be put beside others"):
        Csv(tmp_path / "0.csv", ("a", "name"))
    with pytest.raises(DataUnreadable, match=r"no\.csv: there is no such file"):
        Csv(tmp_path / "no.csv")


def test_columns_of_parquet_are_put_beside_each_other(tmp_path):
    pa.parquet.write_table(pa.table({"a": [1.0, 2.0], "b": [3.0, 4.0], "y": [0, 1]}), tmp_path / "t.parquet")
    features, labels = load_all(Parquet(tmp_path / "t.parquet", ("b", "a"), "y"))
    assert (features.tolist(), labels.tolist()) == ([[3.0, 1.0], [4.0, 2.0]], [0, 1])
