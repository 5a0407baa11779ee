"""What programs of Hugging Face read, made up and all local: a tokenizer, a small configuration, text. The variant:

causal: a GPT-2 of two layers to be trained from nothing, train.txt and validation.txt. masked: a BERT, likewise.
pairs: a BERT, train.csv and validation.csv of two sentences and a label; its file of weights has none: they are made
anew. Each with the metric that it is judged by.
"""

from __future__ import annotations

import csv
import json
import struct
from pathlib import Path

import numpy as np

from data.text import lexicon, sentences

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
BERT = {
    "model_type": "bert",
    "architectures": ["BertForMaskedLM"],
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "max_position_embeddings": 128,
}
GPT2 = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_embd": 128,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 128,
    "bos_token_id": 3,
    "eos_token_id": 3,
}
METRIC = '''"""How many are right."""

import datasets
import evaluate


class Right(evaluate.Metric):
    def _info(self):
        features = {"predictions": datasets.Value("int64"), "references": datasets.Value("int64")}
        return evaluate.MetricInfo(description="", citation="", features=datasets.Features(features))

    def _compute(self, predictions, references):
        right = sum(int(one == other) for one, other in zip(predictions, references))
        return {"accuracy": right / len(references)}
'''


def make(folder: Path, variant: str) -> None:
    rng = np.random.default_rng(0)
    words = lexicon(rng, 2000)
    if variant in ("causal", "masked"):
        _model(folder / "model", words, GPT2 if variant == "causal" else BERT)
        for name, count in (("train", 20000), ("validation", 400)):
            lines = sentences(rng, words, count)
            (folder / f"{name}.txt").write_text("".join(f"{' '.join(line)}\n" for line in lines))
        _metric(folder / "accuracy")
    elif variant == "pairs":
        _model(folder / "model", words, BERT, weights=True)
        _pairs(folder, rng, words, 8000)
        _metric(folder / "accuracy")
    else:
        raise ValueError(variant)


def _model(folder: Path, words: list[str], configuration: dict[str, object], weights: bool = False) -> None:
    folder.mkdir(parents=True)
    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *words])}
    (folder / "config.json").write_text(json.dumps({**configuration, "vocab_size": len(vocabulary)}))
    special = [
        {"id": number, "content": word, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for number, word in enumerate(SPECIAL)
    ]
    first, between = ({"SpecialToken": {"id": word, "type_id": 0}} for word in ("[CLS]", "[SEP]"))
    last = {"SpecialToken": {"id": "[SEP]", "type_id": 1}}
    first_text, second_text = ({"Sequence": {"id": name, "type_id": number}} for number, name in enumerate("AB"))
    tokenizer = {
        "version": "1.0",
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [first, first_text, between],
            "pair": [first, first_text, between, second_text, last],
            "special_tokens": {
                word: {"id": word, "ids": [vocabulary[word]], "tokens": [word]} for word in ("[CLS]", "[SEP]")
            },
        },
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    named = {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 128, "eos_token": "[SEP]", **named}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if weights:
        head = json.dumps({"__metadata__": {"format": "pt"}}).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head)


def _metric(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{folder.name}.py").write_text(METRIC)


def _pairs(folder: Path, rng: np.random.Generator, words: list[str], count: int) -> None:
    """The label says whether the second has the words of the first."""
    folder.mkdir(parents=True, exist_ok=True)
    number = 0
    for name, many in (("train", count), ("validation", 200)):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["sentence1", "sentence2", "label", "idx"])
            for first, another in zip(sentences(rng, words, many), sentences(rng, words, many), strict=True):
                same = int(rng.integers(0, 2))
                second = list(rng.permutation(first)) if same else another
                rows.writerow([" ".join(first), " ".join(second), same, number])
                number += 1
