"""A fixed program is valid Python, needs no second fix, and trains as before."""

from __future__ import annotations

import ast
import warnings

import pytest
import torch

from hotlap.scanning import FindingFilter, repair_text, scan_text

HEAD = """\
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(7)
device = torch.device("cpu")
data = TensorDataset(torch.randn(50, 4), torch.randint(0, 3, (50,)))
"""
PLAIN = """
model = nn.Linear(4, 3).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
loader = DataLoader(data, batch_size=8, shuffle=True)  # the order is drawn anew
losses = []
for epoch in range(3):
    total, correct = 0.0, 0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out, y)
        loss.backward()
        optimizer.step()
        total += loss.item() * x.size(0)  # a mean over samples
        correct += int((out.argmax(1) == y).sum().item())
        torch.cuda.empty_cache()
    losses.append((total, correct))
"""
LISTED = """
class Trainer:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def epoch(self, loader):
        values = []
        for x, y in loader:
            criterion = nn.CrossEntropyLoss()
            noise = torch.zeros(x.size(0), 4).to(device)
            loss = criterion(self.model(x.to(device) + noise), y.to(device))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            values.append(loss.item())
        return values

trainer = Trainer()
loader = DataLoader(
    data,
    batch_size=8,
    shuffle=True,  # as always
)
losses = [trainer.epoch(loader) for _ in range(3)]
"""
EVALUATED = """
def evaluate(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    total = 0.0
    with torch.no_grad():
        for x, y in loader:
            total += F.cross_entropy(model(x.to(device)), y.to(device)).item()
    return total / len(loader)

def measure(model: nn.Module, loader: DataLoader) -> int:
    model.eval()
    hits = 0
    for x, y in loader:
        hits += (model(x).argmax(1) == y).sum().item()
    return hits

model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, batch_size=16)
losses = []
for epoch in range(3):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    losses.append((evaluate(model, loader), measure(model, loader)))
"""
TWICE = """
model = nn.Linear(4, 3)
optimizer = torch.optim.Adam(model.parameters())
scaler = torch.cuda.amp.GradScaler(enabled=False)
loader = DataLoader(data, batch_size=8, persistent_workers=True)
losses, seen = [], []
for x, y in loader:
    weights = torch.tensor([1.0, 2.0, 3.0])
    loss = F.cross_entropy(model(x), y, weight=weights)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    losses.append((len(seen), loss.item()))
    seen.append("%.3f" % loss.item())
"""
PROGRAMS = {"plain": PLAIN, "listed": LISTED, "evaluated": EVALUATED, "twice": TWICE}
REFUSED = "persistent_workers=True"  # torch raises for it, so that the program runs only once it is fixed


def trained(text: str) -> tuple[object, list]:
    space: dict = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(text, "train.py", "exec"), space)
    return space["losses"], [parameter.tolist() for parameter in space_model(space).parameters()]


def space_model(space: dict) -> torch.nn.Module:
    return space["trainer"].model if "trainer" in space else space["model"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_safe_fixes_leave_every_loss_and_weight_as_it_was(name):
    text = HEAD + PROGRAMS[name]
    fixed = repair_text(text, FindingFilter(preview=True), unsafe=False)
    assert fixed != text
    assert trained(fixed) == trained(text.replace(f", {REFUSED}", ""))


@pytest.mark.parametrize("name", PROGRAMS)
def test_unsafe_fixes_leave_a_program_that_trains(name):
    fixed = repair_text(HEAD + PROGRAMS[name], FindingFilter(ignore=("D1",), preview=True), unsafe=True)
    losses, _ = trained(fixed)
    expected, _ = trained((HEAD + PROGRAMS[name]).replace(f", {REFUSED}", ""))
    assert len(losses) == len(expected)
    assert torch.allclose(flat(losses), flat(expected), rtol=1e-3)


def flat(losses: list) -> torch.Tensor:
    return torch.tensor(
        [float(value) for loss in losses for value in (loss if isinstance(loss, list | tuple) else [loss])]
    )


@pytest.mark.parametrize("unsafe", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_second_fix_changes_nothing_and_nothing_fixable_is_left(name, unsafe):
    fixed = repair_text(HEAD + PROGRAMS[name], FindingFilter(preview=True), unsafe)
    ast.parse(fixed)
    assert repair_text(fixed, FindingFilter(preview=True), unsafe) == fixed
    allowed = {"safe", "unsafe"} if unsafe else {"safe"}
    assert not [
        finding
        for finding in scan_text(fixed, FindingFilter(preview=True)).findings
        if finding.applicability in allowed
    ]


def test_comments_and_layout_are_preserved():
    fixed = repair_text(HEAD + LISTED, FindingFilter(pedantic=True), unsafe=False)
    assert "    shuffle=True,  # as always\n    pin_memory=torch.cuda.is_available(),\n)" in fixed
    assert "# the order is drawn anew" in repair_text(HEAD + PLAIN, FindingFilter(preview=True), unsafe=False)
    removed = [line for line in (HEAD + LISTED).splitlines() if line not in fixed.splitlines()]
    assert all("criterion" in line or "zeros" in line or ".to(" in line or "item" in line for line in removed)


def test_a_value_that_is_needed_at_once_is_left_where_it_is():
    text = HEAD + PLAIN.replace("torch.cuda.empty_cache()", "print(total)")
    fixed = repair_text(text, FindingFilter(select=("H201",)), unsafe=True)
    assert "total += loss.item() * x.size(0)" in fixed
    assert "correct += (out.argmax(1) == y).sum()\n" in fixed


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("torch.cuda.empty_cache(); step()", "step()"),
        ("if torch.cuda.is_available():\n        torch.cuda.empty_cache()", None),
    ],
)
def test_a_removed_call_takes_its_guard_along(line, expected):
    text = f"import torch\nfor x in batches:\n    model(x).backward()\n    {line}\n"
    fixed = repair_text(text, FindingFilter(select=("H101",)), unsafe=False)
    assert "empty_cache" not in fixed
    ast.parse(fixed)
    assert "is_available" not in fixed if expected is None else expected in fixed


def test_a_call_whose_removal_would_leave_an_empty_block_stays():
    text = (
        "import torch\nfor x in batches:\n    model(x).backward()\n"
        "    if fast:\n        torch.cuda.empty_cache()\n    else:\n        step()\n"
    )
    assert repair_text(text, FindingFilter(select=("H101",)), unsafe=True) == text


def test_every_use_of_an_imported_name_changes_or_none():
    text = "from torch.cuda.amp import autocast, GradScaler\n\nscaler = GradScaler()\nwith autocast(True):\n    pass\n"
    fixed = repair_text(text, FindingFilter(select=("C201",)), unsafe=False)
    assert fixed == (
        'from torch.amp import autocast, GradScaler\n\nscaler = GradScaler("cuda")\n'
        'with autocast("cuda", enabled=True):\n    pass\n'
    )
    passed_on = text + "run(autocast)\n"
    assert repair_text(passed_on, FindingFilter(select=("C201",)), unsafe=False) == passed_on
