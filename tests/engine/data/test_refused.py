"""Data that would be silently changed is rejected, with an error that says what to give instead."""

import numpy as np
import pandas as pd
import pytest
import torch

from hotlap.engine.data import (
    Arrays,
    Cache,
    CarriedWindows,
    ConcatSource,
    DataMismatch,
    Stream,
    Tensors,
    Windows,
    bits,
    grams_in,
    mapped,
    ngrams,
    resident,
    subset,
)  # fmt: skip
from hotlap.engine.data.keys import key_of

CPU = torch.device("cpu")
MASKED = np.ma.array([1.0, 2.0, 3.0], mask=[False, True, False])
NAMES = pd.DataFrame({"first": ["ann", "bob"], "last": ["x", "y"]})


@pytest.mark.parametrize("table", [NAMES, {"first": ["ann"], "last": ["x"]}])
@pytest.mark.parametrize("encode", [bits, grams_in, lambda table: ngrams(table, ["an"])])
def test_a_table_is_not_mistaken_for_its_column_names(table, encode):
    with pytest.raises(DataMismatch, match=r"is a table of columns; give one column, table\['name'\]"):
        encode(table)
    assert ngrams((NAMES["first"], NAMES["last"]), ["nx"]).tolist() == [[True], [False]]


@pytest.mark.parametrize("kind", [set, frozenset])
def test_rejects_sets_because_they_have_no_order(kind):
    with pytest.raises(DataMismatch, match=r"n-grams of the vocabulary are a set.*sorted"):
        ngrams(["abc"], kind(["ab", "bc"]))
    with pytest.raises(DataMismatch, match="the texts are a set"):
        bits(kind(["01", "10"]))


@pytest.mark.parametrize("vocabulary", [{"ab": 1, "bc": 0}, pd.DataFrame({"ab": [1]})])
def test_rejects_a_vocabulary_that_is_not_a_list_of_texts(vocabulary):
    with pytest.raises(DataMismatch, match="give its n-grams as a list, in order"):
        ngrams(["abc"], vocabulary)
    with pytest.raises(DataMismatch, match="None in the vocabulary is of type NoneType, not text"):
        ngrams(["abc"], ["ab", None])


@pytest.mark.parametrize(
    "use",
    [
        Tensors,
        resident,
        Arrays,
        lambda values: Windows([values], 2),
        lambda values: subset(Tensors(torch.zeros(9)), values.astype(int)),
    ],
)
def test_rejects_masked_values(use):
    with pytest.raises(DataMismatch, match=r"1 values of a masked array of shape \(3,\) are masked"):
        use(MASKED)
    use(np.ma.array([1.0, 2.0, 3.0]))  # nothing is masked: nothing is lost


def test_masked_values_are_not_cached_and_masks_of_arguments_are_part_of_the_key(tmp_path):
    with pytest.raises(DataMismatch, match="masked"):
        Cache(tmp_path).arrays(lambda: {"a": MASKED})
    arguments = [np.ma.array([1, 2], mask=mask) for mask in ([False, True], [True, False])] + [np.array([1, 2])]
    assert len({key_of(use_of, [], {"value": value}, "", "content") for value in arguments}) == 3


def use_of(value):
    return {"sum": value.sum()}


@pytest.mark.parametrize("letters", [np.array([b"01", b"10"]), np.array(["01", "10"])])
def test_rejects_masked_texts(letters):
    for encode in (bits, grams_in):
        with pytest.raises(DataMismatch, match="masked"):
            encode(np.ma.array(letters, mask=[True, False]))


def test_rejects_joining_streams_and_suggests_joining_their_readers():
    stream = Stream(Arrays(np.arange(3)))
    with pytest.raises(DataMismatch, match=r"not \['Stream', 'Tensors'\].*Stream\(ChainReader\(first, second\)\)"):
        ConcatSource(stream, Tensors(torch.arange(3)))


def test_rejects_fewer_than_one_lane():
    with pytest.raises(DataMismatch, match="lanes=0, but a batch needs at least 1"):
        CarriedWindows([np.arange(10.0)], 2, [np.arange(10.0)], 0)


TABLE, LABELS = torch.arange(30.0).view(10, 3), torch.arange(10)


class Halves:
    """A custom source whose batches have fewer rows than requested."""

    rows, device = 10, CPU

    def gather(self, index):
        return TABLE[index[::2]], LABELS[index[::2]]


class StreamedHalves:
    rows = 10

    def batches(self, order, batch_size, device, drop_last=False):
        for start in range(0, len(order), batch_size):
            yield Halves().gather(order[start : start + batch_size])


def every_other(*batch):
    return tuple(tensor[::2] for tensor in batch)


def batches_of(source):
    if hasattr(source, "gather"):
        return [source.gather(torch.arange(4))]
    return list(source.batches(torch.arange(source.rows), 4, CPU))


@pytest.mark.parametrize(
    "source",
    [
        mapped(Tensors(TABLE, LABELS), every_other),
        mapped(Stream(Arrays(TABLE.numpy(), LABELS.numpy())), every_other),
        subset(Halves(), range(10)),
        subset(StreamedHalves(), range(10)),
    ],
)
def test_rejects_a_batch_with_the_wrong_number_of_rows(source):
    with pytest.raises(DataMismatch, match=r"4 rows were requested, but .* \(shapes: \(2, 3\), \(2,\)\)"):
        batches_of(source)


def test_accepts_batches_laid_out_by_step_and_a_shorter_last_batch():
    windows = torch.zeros(10, 7, 3)
    sources = [mapped(source, by_step) for source in (Tensors(windows), Stream(Arrays(windows.numpy())))]
    resident_shapes, streamed_shapes = ([batch[0].shape for batch in batches_of(source)] for source in sources)
    assert resident_shapes == [(7, 4, 3)]
    assert streamed_shapes == [(7, 4, 3), (7, 4, 3), (7, 2, 3)]


def by_step(windows):
    return windows.transpose(0, 1)


def test_the_row_check_compiles_with_the_gather():
    source = subset(mapped(Tensors(TABLE, LABELS), lambda x, y: (x * 2, y)), range(10))
    compiled = torch.compile(source.gather, backend="eager", fullgraph=True)
    for rows in (4, 6, 3):
        assert torch.equal(compiled(torch.arange(rows))[0], TABLE[:rows] * 2)
