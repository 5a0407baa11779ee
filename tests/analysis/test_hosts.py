"""A file that keeps its model on the host has no finding, because its reads wait for no device."""

from __future__ import annotations

from hotlap import scanning
from hotlap.analysis.parse.files import Source
from hotlap.scanning import FindingFilter

HEAD = "import torch\nimport torch.nn as nn\n"
SMALL = (
    HEAD
    + """
class Small(nn.Module):
    def forward(self, x):
        return x.mean()


def fit(net, batches):
    optimizer = torch.optim.Adam(net.parameters())
    for epoch in range(9):
        total = []
        for x in batches:
            loss = net(x)
            loss.backward()
            optimizer.step()
            total.append(loss.item())
"""
)
LARGE = (
    HEAD
    + """
def fit_large(net, loader, optimizer):
    net.to("cuda")
    for x in loader:
        net(x.to("cuda")).mean().backward()
        optimizer.step()
"""
)


def reads(**files: str) -> set[str]:
    """The files with a finding for a read that waits for the device."""
    sources = [Source(f"{name}.py", name, False, text) for name, text in files.items()]
    return {finding.path for finding in scanning.scan(sources, FindingFilter(select=("H201",))).findings}


def test_a_file_that_names_no_device_is_silent_beside_one_that_does():
    assert reads(small=SMALL, large=LARGE) == set()


def test_a_model_that_another_file_moves_to_a_device_is_not_on_the_host():
    main = "from small import Small, fit\n\nfit(Small().to('cuda'), batches)\n"
    assert reads(small=SMALL, main=main) == {"small.py"}


def test_a_file_that_imports_a_helper_from_one_with_a_device_is_not_on_the_host():
    helped = "from large import fit_large\n" + SMALL
    assert reads(small=helped, large=LARGE) == {"small.py"}


def test_a_file_without_its_own_model_is_not_assumed_to_be_on_the_host():
    alone = SMALL.replace("class Small(nn.Module)", "class Small")
    assert reads(small=alone, large=LARGE) == {"small.py"}
