"""One recurrence over all steps of one layer in one direction: what goes in and comes out."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass
class Recurrence:
    kind: str
    reverse: bool
    exact: bool  # accurate fp32 functions, no TF32
    gates: Tensor  # steps × batch × (gates × hidden), forward of any row length; backward 4 × hidden
    weight: Tensor  # (gates × hidden) × hidden
    bias_ih: Tensor | None
    bias_hh: Tensor | None
    h0: Tensor | None
    c0: Tensor | None
    y: Tensor  # steps × batch × hidden; rows may be wider than hidden
    cells: Tensor | None  # None: nothing will go backward
    h_n: Tensor | None = None  # forward
    c_n: Tensor | None = None
    keep: bool = False  # forward leaves in `gates`, 4 × hidden wide, what backward begins with
    dy: Tensor | None = None  # backward; any strides but the last
    dh_n: Tensor | None = None
    dc_n: Tensor | None = None
    dh0: Tensor | None = None
    dc0: Tensor | None = None

    @property
    def steps(self) -> int:
        return int(self.gates.shape[0])

    @property
    def batch(self) -> int:
        return int(self.gates.shape[1])

    @property
    def hidden(self) -> int:
        return int(self.weight.shape[1])

    @property
    def order(self) -> range:
        return range(self.steps - 1, -1, -1) if self.reverse else range(self.steps)
