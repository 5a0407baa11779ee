"""For every rule card, the example has a finding, the fix turns it into the card's alternative, and that has none."""

from __future__ import annotations

import re

import pytest

from hotlap import catalog
from hotlap.catalog import patterns
from hotlap.scanning import FindingFilter, repair_text, scan_text

PRELUDE = """\
import gc
import os
import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from tqdm import tqdm

device = torch.device("cuda")
model = nn.Linear(4, 1).to(device)
"""
TRAINING = """

def _train(model, optimizer):
    for batch in range(10):
        model.weight.sum().backward()
        optimizer.step()


print(gc.isenabled(), os.name)
"""
RULES = patterns.rules()


def blocks(name: str) -> dict[str, str]:
    text = catalog.card(name)
    return dict(re.findall(r"## ([^\n]+)\n\n```python\n(.*?)```", text, re.DOTALL))


def found(code: str, rule) -> int:
    wanted = FindingFilter(select=(rule.code,), pedantic=True)
    return len(scan_text(PRELUDE + code + TRAINING, wanted).findings)


@pytest.mark.parametrize("code", RULES)
def test_the_example_is_found_and_what_to_use_instead_is_silent(code):
    rule = RULES[code]
    examples = blocks(rule.name)
    assert found(examples["Example"], rule)
    assert not found(examples["Use instead"], rule)


@pytest.mark.parametrize("code", [code for code in RULES if patterns.fix_of(RULES[code].name)])
def test_the_fix_produces_what_the_card_says(code):
    rule = RULES[code]
    examples = blocks(rule.name)
    wanted = FindingFilter(select=(rule.code,), pedantic=True)
    fixed = repair_text(PRELUDE + examples["Example"] + TRAINING, wanted, unsafe=True)
    assert fixed == PRELUDE + examples["Use instead"] + TRAINING


def test_codes_and_names_are_unique_and_match_their_entries():
    names = [patterns.pattern(path.parent) for path in sorted(patterns.FOLDER.glob("*/card.md"))]
    assert len({pattern.code for pattern in names}) == len(names) == len({pattern.name for pattern in names})
    for name, entry in catalog.entries().items():
        about = patterns.pattern(patterns.FOLDER / name.replace("-", "_"))
        assert (about.name, about.code) == (name, entry.code)


def test_at_least_fifteen_rules_repair_themselves():
    assert sum(patterns.fix_of(rule.name) is not None for rule in RULES.values()) >= 15
