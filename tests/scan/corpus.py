"""The corpus: Markdown with prose and programs. A comment `# hotlap: CODE` marks a line with an expected finding."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "corpus"
_PROGRAM = re.compile(r"```python\n(.*?)```", re.DOTALL)
_MARK = re.compile(r"# hotlap: (?P<codes>[A-Z]\d{3}(?:, [A-Z]\d{3})*)$")
_HEADING = re.compile(r"^# \S+ \((?P<code>[A-Z]\d+)\)$", re.MULTILINE)
PRELUDE = """\
import gc, logging, math, os, time
import h5py
import numpy as np
import pandas as pd
import torch
import torch.nn as nn
import torch.nn.functional as F
import wandb
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm
import pytorch_lightning as pl
from accelerate import Accelerator
from transformers import Trainer, TrainerCallback
"""


@dataclass(frozen=True)
class Case:
    code: str
    section: str  # "Found" or "Silent"
    title: str
    files: dict[str, str]

    def __str__(self) -> str:
        return f"{self.code}-{self.section}-{self.title}"

    def expected(self) -> set[tuple[str, int]]:
        """The files and lines that are marked for this rule."""
        found = set()
        for name, text in self.files.items():
            for number, line in enumerate(text.splitlines(), 1):
                mark = _MARK.search(line)
                if mark and self.code in mark["codes"].split(", "):
                    found.add((name, number))
        return found


def cases() -> list[Case]:
    return [case for path in sorted(FOLDER.glob("*.md")) for case in _of_file(path)]


def _of_file(path: Path) -> list[Case]:
    text = path.read_text(encoding="utf-8")
    code = _HEADING.search(text)["code"]
    found = []
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        name, _, body = section.partition("\n")
        for part in re.split(r"^### ", body, flags=re.MULTILINE)[1:]:
            title, _, rest = part.partition("\n")
            found.append(Case(code, name.strip(), title.strip(), _files(rest)))
    return found


def _files(text: str) -> dict[str, str]:
    """The programs of one case; the first line of each may name its file: `# file: utils.py`."""
    files = {}
    for program in _PROGRAM.findall(text):
        named = re.match(r"# file: (\S+)\n", program)
        files[named[1] if named else "train.py"] = PRELUDE + program
    return files
