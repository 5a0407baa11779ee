"""The properties of a layer and its input on which the choice of a kernel depends."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from hotlap.kernels.recurrent import cuda_recurrence


@dataclass(frozen=True)
class Key:
    kind: str
    batch: int
    steps: int
    features: int
    hidden: int
    layers: int
    directions: int
    bias: bool
    dtype: str
    exact: bool
    backward: bool

    @property
    def text(self) -> str:
        return " ".join(f"{name}={value}" for name, value in asdict(self).items())

    @property
    def sizes(self) -> cuda_recurrence.Sizes:
        return cuda_recurrence.Sizes(self.kind, self.hidden, self.exact, self.features, self.layers, self.directions)
