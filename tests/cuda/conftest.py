import pytest
import torch


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    for item in items:
        if "cuda" in item.path.parts:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))
