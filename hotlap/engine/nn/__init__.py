"""Recurrent layers that stand in for torch.nn's: same parameters, same state_dict, same outputs."""

from hotlap.engine.nn.modules import GRU, LSTM

__all__ = ["GRU", "LSTM"]
