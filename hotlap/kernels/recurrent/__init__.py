"""LSTM and GRU layers by kernels that keep their weights on the chip."""
