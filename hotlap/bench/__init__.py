"""The bench: the bundled training pipelines, each trained with several arms, interleaved, in fresh processes."""
