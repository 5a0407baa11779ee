"""Works out how often each function and loop runs: per epoch, per batch, per sample, per element."""
