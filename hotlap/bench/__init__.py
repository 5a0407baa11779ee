"""The bench: the five training pipelines, each trained by several arms, interleaved, in fresh processes."""
