"""Settings of a whole program as repairs: TF32, the autotuner, the memory format, half precision."""

from __future__ import annotations

import warnings

import pytest
import torch

from hotlap.analysis.edits.soundness import flaws
from hotlap.scanning import FindingFilter, repair_text, scan_text

ALL = FindingFilter(select=("C101", "C102", "C103", "C105"))
PROGRAM = """\
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2))
        self.classify = nn.Linear(8 * 7 * 7, 10)

    def forward(self, images):
        return self.classify(self.features(images).flatten(1))


def main(epochs=2):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    model = Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, labels = torch.randn(8, 3, 16, 16), torch.arange(8)
    losses = []
    for epoch in range(epochs):
        for x, y in [(images, labels), (images.flip(0), labels.flip(0))]:
            x, y = x.to(device), y.to(device)
            outputs = model(x)
            loss = F.cross_entropy(outputs, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    return torch.stack(losses)


if __name__ == "__main__":
    print(main())
"""


def fixed(text: str, wanted: FindingFilter = ALL) -> str:
    after = repair_text(text, wanted, unsafe=True)
    assert not flaws(text, after)
    return after


def losses_of(text: str) -> torch.Tensor:
    names: dict = {"__name__": "program"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # autocast says that there is no GPU
        exec(compile(text, "program", "exec"), names)
        return names["main"]()


@pytest.fixture
def settings():
    precision, benchmark = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    yield
    torch.set_float32_matmul_precision(precision)
    torch.backends.cudnn.benchmark = benchmark


def test_each_setting_is_made_once_before_the_outermost_loop():
    after = fixed(PROGRAM)
    settings = (
        '    torch.set_float32_matmul_precision("high")\n',
        "    torch.backends.cudnn.benchmark = True\n",
        "    model.to(memory_format=torch.channels_last)\n",
    )
    begin = after.index("    for epoch in range(epochs):")
    assert all(after.count(setting) == 1 and after.index(setting) < begin for setting in settings)
    assert (
        '            with torch.autocast("cuda", dtype=torch.bfloat16):\n                outputs = model(x)\n' in after
    )
    assert "            outputs = outputs.float()\n            loss = " in after
    assert not scan_text(after, ALL).findings


def test_the_repaired_program_trains_as_before(settings):
    before, after = losses_of(PROGRAM), losses_of(fixed(PROGRAM))
    tolerance = 0.05 if torch.cuda.is_available() else 1e-4
    torch.testing.assert_close(after, before, rtol=tolerance, atol=tolerance)


def test_without_the_permission_to_change_rounding_nothing_is_set():
    assert repair_text(PROGRAM, ALL, unsafe=False) == PROGRAM


@pytest.mark.parametrize(
    "line",
    ["self.features(images).view(len(images), -1)", "self.features(nn.Conv3d(1, 1, 1)(images[None])[0]).flatten(1)"],
)
def test_the_memory_format_is_left_where_something_depends_on_it(line):
    text = PROGRAM.replace("self.features(images).flatten(1)", line)
    assert "channels_last" not in fixed(text)
    assert [finding.code for finding in scan_text(text, FindingFilter(select=("C105",))).findings] == ["C105"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "return self.classify(self.features(images).flatten(1))",
            "return self.features(images), self.classify(images)",
        ),
        ("outputs = model(x)\n", "outputs = model(x) + model(x.flip(0))\n"),
        ("self.features(images)", "torch.fft.rfft(self.features(images)).real"),
        ("loss = F.cross_entropy(outputs, y)", "loss = F.cross_entropy(model(x), y)"),
    ],
)
def test_half_precision_is_only_advised_where_the_program_might_not_take_it(old, new):
    text = PROGRAM.replace(old, new)
    assert "autocast" not in fixed(text)
    assert [finding.code for finding in scan_text(text, FindingFilter(select=("C103",))).findings] == ["C103"]


def test_a_file_without_the_name_torch_is_only_advised():
    text = PROGRAM.replace("import torch\n", "import torch as t\n").replace("torch.", "t.")
    assert fixed(text.replace("import t.nn", "import torch.nn")).count("set_float32_matmul_precision") == 0


def test_the_advice_to_compile_names_what_breaks_the_graph_and_what_to_compile_alone():
    (plain,) = scan_text(PROGRAM, FindingFilter(select=("C104",))).findings
    assert plain.repair == "model = torch.compile(model), and measure it, as hotlap tune does"
    text = PROGRAM.replace("self.features(images)", "self.features(images) * images.max().item()").replace(
        "nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2))",
        "nn.Sequential(nn.Conv2d(3, 8, 3), nn.MaxPool2d(2), *[Block() for _ in range(12)])",
    )
    block = "class Block(nn.Module):\n    def forward(self, x):\n        return x.relu()\n\n\nclass Net"
    (advised,) = scan_text(text.replace("class Net", block), FindingFilter(select=("C104",))).findings
    assert "line 18 breaks the graph in two, and fullgraph=True names every such line" in advised.repair
    assert "compile one region, `Block`" in advised.repair
