"""A batch of a resident source holds the rows that its index names, whatever the source is made of."""

import numpy as np
import pytest
import torch

from hotlap.engine.data import (
    CarriedWindows,
    ConcatSource,
    DataMismatch,
    EmptySplit,
    Stream,
    Tensors,
    Windows,
    compact,
    mapped,
    resident,
    split,
    subset,
)  # fmt: skip
from hotlap.engine.data.memory import Room
from hotlap.engine.data.readers import Arrays

PLENTY = Room(device=2**40, host=2**40)
CPU = torch.device("cpu")


def index(*rows):
    return torch.tensor(rows)


def test_a_batch_has_the_requested_rows_in_the_requested_type():
    source = Tensors(torch.arange(6, dtype=torch.uint8).view(3, 2), torch.tensor([False, True, True]),
                     dtypes=(torch.float32, None))  # fmt: skip
    numbers, flags = source.gather(index(2, 0, 2))
    assert numbers.tolist() == [[4.0, 5.0], [0.0, 1.0], [4.0, 5.0]]
    assert numbers.dtype == torch.float32
    assert source.tensors[0].dtype == torch.uint8
    assert flags.tolist() == [True, False, True]


def test_arrays_that_torch_cannot_wrap_become_tensors():
    reversed_rows = np.arange(4.0)[::-1]
    swapped = np.arange(4, dtype=">i4")
    fixed = np.arange(4)
    fixed.flags.writeable = False
    batch = Tensors(reversed_rows, swapped, fixed).gather(index(0, 3))
    assert [column.tolist() for column in batch] == [[3.0, 0.0], [0, 3], [0, 3]]


@pytest.mark.parametrize(
    ("tensors", "kind", "message"),
    [
        ([torch.zeros(3), torch.zeros(2)], DataMismatch, "same first dimension"),
        ([torch.zeros(0, 4)], EmptySplit, "empty"),
        ([], EmptySplit, "no tensors"),
        ([np.array(["a"], dtype=object)], DataMismatch, "object"),
    ],
)
def test_rejects_tensors_that_make_no_rows(tensors, kind, message):
    with pytest.raises(kind, match=message):
        Tensors(*tensors)


def series(*lengths):
    return [torch.arange(100 * number, 100 * number + length).float().view(-1, 1) * torch.tensor([1.0, -1.0])
            for number, length in enumerate(lengths)]  # fmt: skip


def materialised(parts, targets, lookback, horizon=0, stride=1):
    windows, wanted = [], []
    for part, target in zip(parts, targets, strict=True):
        for start in range(0, len(part) - lookback - horizon + 1, stride):
            windows.append(part[start : start + lookback])
            wanted.append(target[start + lookback - 1 + horizon])
    return torch.stack(windows), torch.stack(wanted)


@pytest.mark.parametrize(("horizon", "stride"), [(0, 1), (2, 1), (0, 3), (1, 2)])
def test_windows_match_slices_and_none_spans_two_series(horizon, stride):
    parts = series(7, 3, 12)
    targets = [part[:, :1] * 2 for part in parts]
    source = Windows(parts, 4, targets, horizon=horizon, stride=stride)
    windows, wanted = materialised(parts, targets, 4, horizon, stride)
    got = source.gather(torch.arange(source.rows))
    assert torch.equal(got[0], windows)
    assert torch.equal(got[1], wanted)
    shuffled = torch.randperm(source.rows)
    assert torch.equal(source.gather(shuffled)[0], windows[shuffled])


def test_windows_laid_out_by_step_are_the_same(monkeypatch):
    source = Windows(series(9, 6), 4)
    expected = source.gather(index(5, 0, 3))[0]
    monkeypatch.setattr(source, "device", torch.device("meta"))
    by_steps = source.gather(index(5, 0, 3))[0]
    assert torch.equal(by_steps, expected)
    assert by_steps.transpose(0, 1).is_contiguous()


def test_windows_store_each_row_once_and_cast_after_the_gather():
    source = Windows([np.ones((1000, 6), np.float16)], 400, dtype=torch.float32)
    assert source.values.numel() == 6000
    assert source.gather(index(0))[0].dtype == torch.float32


def test_rejects_series_shorter_than_a_window():
    with pytest.raises(EmptySplit, match=r"window of 10 rows \(the longest has 7\)"):
        Windows(series(7, 3), 10)
    with pytest.raises(DataMismatch, match="a row for every row"):
        Windows(series(7), 3, [torch.zeros(6)])


def test_one_array_is_not_mistaken_for_many_series():
    with pytest.raises(DataMismatch, match=r"series is one array of shape \(30, 4\); give a list .* \[series\]"):
        Windows(np.zeros((30, 4)), 3)
    with pytest.raises(DataMismatch, match=r"targets is one array of shape \(30,\); give a list .* \[targets\]"):
        Windows([np.zeros((30, 4))], 3, np.zeros(30))
    assert Windows(torch.zeros(2, 30, 4), 3, torch.zeros(2, 30)).rows == 56


def test_carried_windows_follow_each_other_lane_by_lane():
    parts = series(10, 8)
    source = CarriedWindows(parts, 2, [part[:, :1] for part in parts], lanes=2)
    assert source.rows == 8
    assert source.left_out == 1
    lanes = [[], []]
    fresh = []
    for start in range(0, source.rows, 2):
        window, new, _ = source.gather(torch.arange(start, start + 2))
        fresh.append(new.tolist())
        for lane in (0, 1):
            lanes[lane] += window[lane, :, 0].tolist()
    assert lanes[0] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert lanes[1] == [8, 9, 100, 101, 102, 103, 104, 105]
    assert fresh == [[True, True], [False, True], [False, False], [False, False]]


def test_subsets_maps_and_joins_gather_the_right_rows():
    source = Tensors(torch.arange(10))
    chosen = subset(source, [7, 1, 4])
    assert chosen.gather(index(2, 0))[0].tolist() == [4, 7]
    doubled = mapped(chosen, lambda numbers: numbers * 2)
    assert doubled.gather(index(1))[0].tolist() == [2]
    joined = ConcatSource(chosen, doubled, source)
    assert joined.rows == 16
    assert joined.gather(index(0, 3, 5, 6, 15, 2))[0].tolist() == [7, 14, 8, 0, 9, 4]


def test_rejects_joins_of_different_rows():
    with pytest.raises(DataMismatch, match="differ in shape or type"):
        ConcatSource(Tensors(torch.zeros(3)), Tensors(torch.zeros(3, 2)))


def test_rejects_rows_outside_a_source_when_the_subset_is_made():
    with pytest.raises(DataMismatch, match=r"rows -1 … 4 .* \(0 … 2\)"):
        subset(Tensors(torch.zeros(3)), [-1, 4])
    with pytest.raises(EmptySplit):
        subset(Tensors(torch.zeros(3)), torch.zeros(0, dtype=torch.int64))


def streamed(tensor):
    return Stream(Arrays(tensor.numpy()))


@pytest.mark.parametrize("kind", [Tensors, streamed])
@pytest.mark.parametrize("form", [list, np.array, torch.tensor])
def test_a_mask_selects_the_rows_where_it_is_true(kind, form):
    chosen = subset(kind(torch.arange(10)), form([False] * 6 + [True] * 4))
    assert chosen.rows == 4
    assert chosen.chosen.tolist() == [6, 7, 8, 9]


@pytest.mark.parametrize("kind", [Tensors, streamed])
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [True, False],
            r"torch.bool of shape \(2,\) cannot select rows of a source with 3 rows; .* a mask of 3 booleans",
        ),
        ([0.5, 2.0], r"torch.float64 of shape \(2,\) cannot select rows"),
        (torch.tensor([[0, 1], [1, 2]]), r"torch.int64 of shape \(2, 2\) cannot select rows"),
        (1, r"torch.int64 of shape \(\) cannot select rows"),
        (["a"], "convert them to numbers"),
        ([[1], [1, 2]], "lists of different lengths cannot select rows"),
    ],
)
def test_rejects_invalid_rows_when_the_subset_is_made(kind, rows, message):
    with pytest.raises(DataMismatch, match=message):
        subset(kind(torch.arange(3)), rows)


@pytest.mark.parametrize("nothing", [[], [False, False, False]])
def test_rejects_an_empty_subset(nothing):
    with pytest.raises(EmptySplit, match="the subset is empty"):
        subset(Tensors(torch.arange(3)), nothing)


@pytest.mark.parametrize("kind", [Tensors, streamed])
def test_a_split_gives_every_row_to_one_side(kind):
    train, valid = split(kind(torch.arange(10)), 0.75, seed=3)

    def rows_of(source):
        if hasattr(source, "gather"):
            return source.gather(torch.arange(source.rows))[0].tolist()
        return torch.cat([b for (b,) in source.batches(torch.arange(source.rows), 4, CPU)]).tolist()

    assert train.rows == 7
    assert sorted(rows_of(train) + rows_of(valid)) == list(range(10))
    assert rows_of(train) != sorted(rows_of(train))


@pytest.mark.parametrize("share", [0.0, 1.0, 0.01])
def test_rejects_a_split_that_leaves_a_side_empty(share):
    with pytest.raises(EmptySplit, match="empty"):
        split(Tensors(torch.arange(10)), share)


def test_data_that_fits_is_resident_and_says_so():
    said = []
    source = resident(torch.arange(5), np.ones(5), device="cpu", room=PLENTY, say=said.append)
    assert isinstance(source, Tensors)
    assert said == [source.placed]
    assert "resident in the memory of cpu" in said[0]


def test_data_too_large_for_the_memory_streams_and_says_so(tmp_path, caplog):
    np.save(tmp_path / "x.npy", np.arange(1000.0))
    source = resident(Arrays(tmp_path / "x.npy"), device="cpu", room=Room(device=1000, host=1000))
    assert isinstance(source, Stream)
    assert "7.8 KiB of data: too large for the memory of cpu" in source.placed
    assert "streamed" in caplog.text
    (batch,) = next(iter(source.batches(torch.tensor([5, 2]), 2, CPU)))
    assert batch.tolist() == [5.0, 2.0]


def test_a_gpu_too_small_leaves_the_data_in_host_memory():
    from hotlap.engine.data.placement import decide

    gpu = torch.device("cuda")
    assert decide(1000, gpu, Room(device=10_000, host=10_000))[0] == "device"
    assert decide(1000, gpu, Room(device=1000, host=10_000))[0] == "host"
    place, line = decide(1000, gpu, Room(device=1000, host=1000))
    assert place == "stream"
    assert "too large for the memory of cuda" in line


def test_rejects_a_missing_device(answering):
    from hotlap.engine.data import NoDevice

    answering(torch.cuda, is_available=False)
    with pytest.raises(NoDevice, match="device='cpu'"):
        resident(torch.zeros(3), device="cuda")


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (torch.tensor([0.0, 1.0, 1.0]), torch.bool),
        (torch.tensor([0, 255]), torch.uint8),
        (torch.tensor([0.5, -2.0]), torch.float16),
        (torch.tensor([0.1]), torch.float32),
        (torch.tensor([-0.0, 1.0]), torch.float16),
        (torch.tensor([0.0, float("nan")]), torch.float32),
    ],
)
def test_compact_data_holds_the_same_numbers(values, dtype):
    small = compact(values)
    assert small.dtype == dtype
    assert torch.equal(small.to(values.dtype).nan_to_num(7), values.nan_to_num(7))


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
@pytest.mark.parametrize("shape", [(9,), (9, 3), (9, 4), (9, 2, 2), (9, 0)])
def test_unsigned_numbers_are_gathered_unchanged(dtype, shape):
    values = torch.arange(9 * 12, dtype=torch.int64)[: int(np.prod(shape))].view(shape)
    got = Tensors(values.to(dtype)).gather(index(8, 0, 3))[0]
    assert got.dtype == dtype
    assert torch.equal(got.to(torch.int64), values[index(8, 0, 3)])


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(9, 8), (9, 2, 4), (9, 3), (9,), (9, 0)])
def test_rows_of_every_type_and_width_are_gathered_unchanged(dtype, shape):
    values = (torch.randn(shape) * 3).to(dtype)
    for part in (values, values[1:]):
        order = torch.randperm(len(part))
        got = Tensors(part).gather(order)[0]
        assert got.dtype == dtype
        assert torch.equal(got, part[order])


def test_rows_of_small_numbers_are_gathered_eight_bytes_at_a_time():
    assert Tensors(torch.zeros(5, 16, dtype=torch.uint8)).wide[0].shape == (5, 2)
    assert Tensors(torch.zeros(5, 16)).wide[0] is None


def test_data_already_on_the_device_needs_no_room_and_mapped_files_are_read(tmp_path):
    tensor = torch.arange(1000.0)
    assert isinstance(resident(tensor, device="cpu", room=Room(device=10, host=10)), Tensors)
    np.save(tmp_path / "x.npy", np.arange(1000.0))
    source = resident(np.load(tmp_path / "x.npy", mmap_mode="r"), device="cpu", room=PLENTY)
    assert torch.equal(source.gather(torch.arange(1000))[0], torch.arange(1000.0).double())
    with pytest.raises(DataMismatch, match="a list cannot be used as data"):
        resident([1, 2], device="cpu", room=PLENTY)


def test_data_moves_to_another_device_in_blocks(monkeypatch):
    from hotlap.engine.data import placement

    table, labels = np.random.default_rng(0).random((500, 7)), np.arange(500)
    monkeypatch.setattr(placement, "blocks_of", lambda reader: np.split(np.arange(500), [120, 240, 499]))
    monkeypatch.setattr(placement.torch, "empty", lambda shape, dtype, device: torch.zeros(shape, dtype=dtype))
    got = placement.loaded(Arrays(table, labels), torch.device("cuda"))
    assert torch.equal(got[0], torch.from_numpy(table))
    assert torch.equal(got[1], torch.from_numpy(labels))
