"""Fixes of the training loop and of the program around it: what they change, and what they must leave alone."""

from __future__ import annotations

import pytest
import torch

from hotlap.scanning import FindingFilter, repair_text, scan_text
from tests.scan.test_fixes import HEAD, trained


def fixed(text: str, code: str, unsafe: bool = True) -> str:
    result = repair_text(text, FindingFilter(select=(code,)), unsafe)
    assert repair_text(result, FindingFilter(select=(code,)), unsafe) == result
    return result


KEPT = """
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kept, losses = [], []
for epoch in range(2):
    total = 0
    for x, y in DataLoader(data, batch_size=8):
        out = model(x)
        loss = F.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        kept.append(loss)
        total += loss * x.size(0)
    losses.append(float(total))
"""


def test_collected_losses_are_detached_and_the_training_is_unchanged():
    after = fixed(HEAD + KEPT, "H223", unsafe=False)
    assert "kept.append(loss.detach())" in after
    assert "total += (loss * x.size(0)).detach()" in after
    assert trained(after) == trained(HEAD + KEPT)
    space: dict = {}
    exec(compile(after, "train.py", "exec"), space)
    assert not any(loss.requires_grad for loss in space["kept"])


def test_a_collected_dictionary_is_reported_but_not_changed():
    text = (
        "import torch\nimport pytorch_lightning as pl\n\n\nclass Net(pl.LightningModule):\n"
        "    def training_step(self, batch, number):\n        loss = self.elbo(batch)\n"
        '        result = {"loss": loss}\n        self.results.append(result)\n        return result\n'
    )
    assert [finding.applicability for finding in scan_text(text, FindingFilter(select=("H223",))).findings] == [
        "display-only"
    ]
    assert fixed(text, "H223") == text


SCALED = """
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for epoch in range(2):
    # one for all
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)  # learns
    for x, y in DataLoader(data, batch_size=8):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    losses.append(loss.item())
"""


def test_a_scaler_is_made_once_before_the_epochs():
    after = fixed(HEAD + SCALED, "H220")
    lines = [line.strip() for line in after.splitlines()]
    assert lines.index('scaler = torch.amp.GradScaler("cpu", init_scale=8.0)  # learns') < lines.index(
        "for epoch in range(2):"
    )
    assert after.count("GradScaler") == 1
    assert trained(after) == trained(HEAD + SCALED)


@pytest.mark.parametrize(
    ("line", "moved"),
    [
        ("scaler = torch.amp.GradScaler('cuda', growth_interval=epoch + 1)", False),
        ("scaler, other = torch.amp.GradScaler('cuda'), 1", False),
        ("x = 1; scaler = torch.amp.GradScaler('cuda')", False),
        ("scaler = torch.amp.GradScaler('cuda')", True),
    ],
)
def test_a_scaler_that_depends_on_the_epoch_or_shares_its_line_stays(line, moved):
    text = (
        f"import torch\nfor epoch in range(2):\n    {line}\n"
        "    for x in loader:\n        scaler.scale(model(x).mean()).backward()\n        scaler.step(optimizer)\n"
    )
    assert (fixed(text, "H220") != text) == moved


ANOMALY = """
torch.autograd.set_detect_anomaly(True)
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
# the whole training
with torch.autograd.detect_anomaly():
    for x, y in DataLoader(data, batch_size=8):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())  # each
"""


def test_anomaly_mode_is_removed_and_its_body_stays():
    after = fixed(HEAD + ANOMALY, "H107")
    assert "anomaly" not in after
    assert "# the whole training\nfor x, y in DataLoader(data, batch_size=8):\n" in after
    assert "losses.append(loss.item())  # each" in after
    expected = trained(HEAD + ANOMALY)
    torch.autograd.set_detect_anomaly(False)
    assert trained(after) == expected


def test_anomaly_mode_of_a_trainer_is_removed_and_its_other_arguments_stay():
    text = "import pytorch_lightning as pl\ntrainer = pl.Trainer(max_epochs=3, detect_anomaly=True, logger=False)\n"
    assert "pl.Trainer(max_epochs=3, logger=False)" in fixed(text, "H107")


def test_anomaly_mode_is_left_alone_without_unsafe():
    assert fixed(HEAD + ANOMALY, "H107", unsafe=False) == HEAD + ANOMALY


def test_a_debugging_variable_is_removed_and_its_neighbours_stay():
    text = 'import os\nimport torch\nos.environ["CUDA_LAUNCH_BLOCKING"] = "1"; seed = 1\nos.environ["A"] = "1"\n'
    assert fixed(text, "H225", unsafe=False) == 'import os\nimport torch\nseed = 1\nos.environ["A"] = "1"\n'
    alone = 'import os, torch\nif fast:\n    os.environ["CUDA_LAUNCH_BLOCKING"] = "1"\n'
    assert fixed(alone, "H225") == alone  # under a condition it is a deliberate choice


@pytest.mark.parametrize(
    ("value", "expected"),
    [('"4"', "torch.set_num_threads(4)"), ("str(count)", "torch.set_num_threads(count)"), ("count", None)],
)
def test_the_number_of_threads_is_given_to_torch_where_it_is_known(value, expected):
    text = f'import torch\nimport os\n\n\ndef main(count):\n    os.environ["OMP_NUM_THREADS"] = {value}  # few\n'
    text += "    print(os.name)\n"
    after = fixed(text, "C113")
    assert after == (text if expected is None else text.replace(f'os.environ["OMP_NUM_THREADS"] = {value}', expected))


def test_threads_set_before_the_imports_are_left_alone():
    text = 'import os\n\nos.environ["OMP_NUM_THREADS"] = "4"\nimport torch\n'
    assert not scan_text(text, FindingFilter(select=("C113",), pedantic=True)).findings
    later = 'import os\nimport numpy\n\nos.environ["OMP_NUM_THREADS"] = "4"\n'
    assert len(scan_text(later, FindingFilter(select=("C113",))).findings) == 1
    assert fixed(later, "C113") == later  # without torch there is no call to replace it


def test_a_property_and_its_setter_are_different_functions():
    text = (
        "import torch\n\n\nclass Kernel:\n    @property\n    def shape(self):\n"
        "        if self.parts.length:\n            for part in self.parts:\n                print(len(part.shape))\n"
        "        return 1\n\n    @shape.setter\n    def shape(self, value):\n        self.kept = value\n\n\n"
        "def train(model, loader, optimizer, kernel: Kernel):\n    for epoch in range(3):\n        for x in loader:\n"
        "            if kernel.shape:\n                model(x).mean().backward()\n            optimizer.step()\n"
        "        torch.save(model.state_dict(), 'last.pt')\n"
    )
    assert {finding.code for finding in scan_text(text, FindingFilter(select=("H205", "H224"))).findings} == {"H224"}
