"""Text is encoded to the same numbers as row by row in pandas, and bad text is rejected with its row."""

import random

import numpy as np
import pandas as pd
import pytest
import torch

from hotlap.engine.data import DataMismatch, bits, grams_in, ngrams

LETTERS = "abcxyz0189 "


def bits_by_apply(series):
    return torch.stack(
        series.apply(lambda text: torch.tensor([int(bit) for bit in text], dtype=torch.float32)).tolist()
    )


def grams_by_apply(frame, vocabulary, n=2):
    text = frame.astype(str).apply("".join, axis=1)
    found = text.apply(lambda value: {value[start : start + n] for start in range(len(value) - n + 1)})
    return torch.stack(
        found.apply(lambda grams: torch.tensor([1.0 if g in grams else 0.0 for g in vocabulary])).tolist()
    )


def words(count, letters, longest=9, seed=0):
    draw = random.Random(seed)
    return ["".join(draw.choices(letters, k=draw.randint(0, longest))) for _ in range(count)]


@pytest.fixture
def bit_strings():
    draw = random.Random(1)
    return ["".join(draw.choices("01", k=37)) for _ in range(300)]


@pytest.mark.parametrize("form", [list, np.array, lambda texts: np.array(texts, dtype="S"), pd.Series])
def test_bit_strings_match_pandas_apply(bit_strings, form):
    expected = bits_by_apply(pd.Series(bit_strings))
    assert torch.equal(bits(form(bit_strings), torch.float32), expected)
    assert bits(form(bit_strings)).dtype == torch.bool
    assert torch.equal(bits(form(bit_strings)).float(), expected)


def test_bit_strings_may_span_several_blocks_of_rows():
    texts = ["01", "11"] * 5000
    assert bits(texts, torch.uint8).sum().item() == 15_000


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["01", "0x"], "row 1 has 'x' at place 1"),
        (["01", "011"], "row 1 has 3 letters"),
        (np.array(["01", "0"], dtype="S2"), "row 1 has 1 letters"),
        (["01", 7], "row 1 is 7 of type int, not text"),
        (["01", "0é"], "row 1 has 'é' at place 1"),
        ("0110", r"'0110' is one text; give a list of texts, \[text\] for one row"),
        (b"01", "is one text"),
        ([b"01", "01"], "row 1 is '01' of type str, not bytes"),
        ([b"01", b"\xff1"], r"row 1 is b'\\xff1', not UTF-8; decode it first"),
    ],
)
def test_rejects_bad_bit_strings_naming_the_row(texts, message):
    with pytest.raises(DataMismatch, match=message):
        bits(texts)


@pytest.mark.parametrize("texts", [["", ""], [b"", b""], np.array(["", ""]), np.array([b"", b""], dtype="S4")])
def test_empty_texts_have_no_bits_in_any_container(texts):
    assert bits(texts).shape == (2, 0)
    assert bits(texts[:0]).shape[0] == 0


@pytest.mark.parametrize("letters", [LETTERS, LETTERS + "éß漢😀"])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_ngrams_match_pandas_apply(letters, n):
    frame = pd.DataFrame({"a": words(200, letters), "b": words(200, letters, seed=1), "c": words(200, letters, 3, 2)})
    draw = random.Random(3)
    vocabulary = sorted({"".join(draw.choices(letters + "q", k=n)) for _ in range(60)})
    found = ngrams((frame["a"], frame["b"], frame["c"]), vocabulary, n, torch.float32)
    assert torch.equal(found, grams_by_apply(frame, vocabulary, n))
    assert found.any()


def test_ngrams_of_byte_arrays_ignore_the_padding():
    columns = [np.array(words(200, "abc01", seed=seed), dtype="S9") for seed in (0, 1)]
    frame = pd.DataFrame({str(number): [value.decode() for value in column] for number, column in enumerate(columns)})
    vocabulary = [first + second for first in "abc01" for second in "abc01"]
    assert torch.equal(ngrams(tuple(columns), vocabulary, dtype=torch.float32), grams_by_apply(frame, vocabulary))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.uint16])
def test_ngrams_have_the_requested_type(dtype):
    found = ngrams(["ab", "ba"], ["ab"], dtype=dtype)
    assert found.dtype == ngrams(["a"], ["ab"], dtype=dtype).dtype == dtype
    assert found.tolist() == [[1], [0]]


def test_a_tuple_of_texts_is_rows_and_a_tuple_of_columns_is_joined():
    assert ngrams(("ann", "bob"), ["an"]).tolist() == ngrams(["ann", "bob"], ["an"]).tolist() == [[True], [False]]
    assert ngrams((["a"], ["n"]), ["an"]).tolist() == [[True]]
    assert ngrams(np.array([], dtype="S3"), ["an"]).shape == ngrams((), ["an"]).shape == (0, 1)
    for text in ("ann", (["a"], "n")):
        with pytest.raises(DataMismatch, match="is one text"):
            ngrams(text, ["an"])


def test_a_zero_inside_a_byte_text_belongs_to_it():
    found = ngrams(np.array([b"a\0b", b"ab"]), ["a\0", "\0b", "ab"])
    assert found.tolist() == [[True, True, False], [False, False, True]]


def test_bytes_are_decoded_as_utf8():
    found = ngrams(np.array(["né".encode(), b"ne"]), ["né", "ne"])
    assert found.tolist() == [[True, False], [False, True]]


def test_a_vocabulary_too_large_for_a_table_is_searched(constants):
    texts, vocabulary = words(100, LETTERS), ["ab", "zz", "01", "q7"]
    table = ngrams(texts, vocabulary)
    constants("hotlap.engine.data.encoders", LARGEST_TABLE=1)
    assert torch.equal(ngrams(texts, vocabulary), table)


def test_no_ngram_spans_two_texts_and_short_texts_have_none():
    assert ngrams(["a", "b", ""], ["ab"]).sum() == 0
    assert ngrams([""], ["ab"]).tolist() == [[False]]


def test_the_vocabulary_of_texts_holds_every_ngram_once():
    assert grams_in(["abab", "ba", "é"]) == ["ab", "ba"]
    assert grams_in(("a", "b"), 1) == grams_in((["a"], ["b"]), 1) == ["a", "b"]


@pytest.mark.parametrize(
    ("vocabulary", "message"), [(["abc"], "has 3 letters"), (["ab", "ab"], "twice"), ([], "at least 1")]
)
def test_rejects_a_bad_vocabulary(vocabulary, message):
    with pytest.raises(DataMismatch, match=message):
        ngrams(["ab"], vocabulary)


def test_rejects_text_columns_of_different_length():
    with pytest.raises(DataMismatch, match="same number of rows"):
        ngrams((["a"], ["b", "c"]), ["ab"])
