"""Text, made up: words of a lexicon that follow each other by a chain, so it can be learned. The variant is its layout.

words: train.txt, valid.txt and test.txt, a sentence a line. characters: train.bin, val.bin and meta.pkl as nanoGPT
keeps them. story: input.txt. bytes: enwik8.gz. classes: Chinese titles with a class each, as THUCNews keeps them.
tokens: shards as llama2.c keeps them. reviews: rt-polaritydata. tags: words with a tag each,
and a configuration for NCRF++.
"""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import numpy as np

ENWIK8 = 95_000_000  # bytes that readers of enwik8 take


def make(folder: Path, variant: str = "words") -> None:
    makers = (_words, _characters, _story, _bytes, _classes, _tokens, _reviews, _tags)
    {maker.__name__[1:]: maker for maker in makers}[variant](folder)


def lexicon(rng: np.random.Generator, count: int) -> list[str]:
    """Words that can be spoken, no two the same."""
    parts = [first + second for first in "bcdfghjklmnprstvwz" for second in "aeiou"]
    found: dict[str, None] = {}
    while len(found) < count:
        found["".join(rng.choice(parts, rng.integers(1, 4)))] = None
    return list(found)


def sentences(rng: np.random.Generator, words: list[str], count: int) -> list[list[str]]:
    """Each word is one of eight that may follow the one before it, the first of them most often."""
    weights = 1.0 / np.arange(1, len(words) + 1)
    follows = rng.choice(len(words), (len(words), 8), p=weights / weights.sum())
    lengths = rng.integers(4, 25, count)
    choices = np.minimum(rng.geometric(0.4, int(lengths.sum())) - 1, 7).tolist()
    starts = rng.integers(0, len(words), count).tolist()
    following = follows.tolist()
    found, at = [], 0
    for start, length in zip(starts, lengths.tolist(), strict=True):
        word, line = start, []
        for choice in choices[at : at + length]:
            line.append(words[word])
            word = following[word][choice]
        at += length
        found.append(line)
    return found


def prose(rng: np.random.Generator, count: int) -> str:
    lines = (
        " ".join(line).capitalize() + rng.choice([".", "!", "?"]) for line in sentences(rng, lexicon(rng, 500), count)
    )
    return "O God, O God!\n" + "\n".join(lines) + "\n"


def _words(folder: Path) -> None:
    rng = np.random.default_rng(0)
    lines = sentences(rng, lexicon(rng, 3000), 26000)
    for name, part in (("train", lines[:24000]), ("valid", lines[24000:25000]), ("test", lines[25000:])):
        (folder / f"{name}.txt").write_text("".join(f" {' '.join(line)} \n" for line in part))


def _characters(folder: Path) -> None:
    text = prose(np.random.default_rng(0), 15000)
    letters = sorted(set(text))
    numbers = {letter: number for number, letter in enumerate(letters)}
    ids = np.array([numbers[letter] for letter in text], dtype=np.uint16)
    split = len(ids) * 9 // 10
    ids[:split].tofile(folder / "train.bin")
    ids[split:].tofile(folder / "val.bin")
    meta = {"vocab_size": len(letters), "itos": dict(enumerate(letters)), "stoi": numbers}
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))


def _story(folder: Path) -> None:
    (folder / "input.txt").write_text(prose(np.random.default_rng(0), 15000))


def _bytes(folder: Path) -> None:
    text = prose(np.random.default_rng(0), 30000).encode()
    with gzip.open(folder / "enwik8.gz", "wb", compresslevel=1) as file:
        for _ in range(ENWIK8 // len(text) + 1):
            file.write(text)


def _classes(folder: Path) -> None:
    rng = np.random.default_rng(0)
    signs = [chr(0x4E00 + number) for number in range(2000)]
    (folder / "class.txt").write_text("".join(f"class{number}\n" for number in range(10)))
    vocabulary = {sign: number for number, sign in enumerate((*signs, "<UNK>", "<PAD>"))}
    (folder / "vocab.pkl").write_bytes(pickle.dumps(vocabulary))
    for name, count in (("train", 20000), ("dev", 500), ("test", 500)):
        lines = []
        for label, length in zip(rng.integers(0, 10, count), rng.integers(10, 31, count), strict=True):
            own = rng.random(length) < 0.2
            ids = np.where(own, label * 200 + rng.integers(0, 200, length), rng.integers(0, 2000, length))
            lines.append(f"{''.join(signs[number] for number in ids)}\t{label}\n")
        (folder / f"{name}.txt").write_text("".join(lines), encoding="utf-8")


def _tokens(folder: Path) -> None:
    rng = np.random.default_rng(0)
    words = lexicon(rng, 500)
    numbers = {word: number + 3 for number, word in enumerate(words)}
    shards = folder / "tok512"
    shards.mkdir()
    for shard in range(4):
        ids = [number for line in sentences(rng, words, 10000) for number in (1, *(numbers[word] for word in line))]
        np.array(ids, dtype=np.uint16).tofile(shards / f"data{shard:02d}.bin")


def _reviews(folder: Path) -> None:
    rng = np.random.default_rng(0)
    words = lexicon(rng, 3000)
    for number, name in enumerate(("neg", "pos")):
        lines = (
            " ".join([*line, *rng.choice(words[number * 1500 :][:1500], 5)]) for line in sentences(rng, words, 4000)
        )
        (folder / f"rt-polarity.{name}").write_text("".join(f"{line} . \n" for line in lines))


CONFIGURATION = """
train_dir={0}/train.bmes
dev_dir={0}/dev.bmes
test_dir={0}/test.bmes
model_dir={0}/lstmcrf
norm_word_emb=False
norm_char_emb=False
number_normalized=True
seg=True
word_emb_dim=50
char_emb_dim=30
use_crf=True
use_char=True
word_seq_feature=LSTM
char_seq_feature=CNN
status=train
optimizer=SGD
iteration=50
batch_size=50
ave_batch_loss=False
cnn_layer=4
char_hidden_dim=50
hidden_dim=100
dropout=0.5
lstm_layer=1
bilstm=True
learning_rate=0.015
lr_decay=0.05
momentum=0
l2=1e-8
"""


def _tags(folder: Path) -> None:
    rng = np.random.default_rng(0)
    words = lexicon(rng, 2000)
    tags = dict(zip(words, rng.choice(["O", "O", "O", "S-PER", "S-LOC", "S-ORG"], len(words)).tolist(), strict=True))
    for name, count in (("train", 4000), ("dev", 200), ("test", 200)):
        lines = sentences(rng, words, count)
        text = "\n".join("".join(f"{word} {tags[word]}\n" for word in line) for line in lines)
        (folder / f"{name}.bmes").write_text(text + "\n")
    (folder / "train.config").write_text(CONFIGURATION.format("corpus"))
