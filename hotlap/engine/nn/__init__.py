"""Layers that stand in for torch.nn's: same parameters, same state_dict, same outputs."""

from hotlap.engine.nn.modules import GRU, LSTM
from hotlap.engine.norms.layer import BatchNorm2d
from hotlap.engine.norms.pairs import fuse_norms

__all__ = ["GRU", "LSTM", "BatchNorm2d", "fuse_norms"]
