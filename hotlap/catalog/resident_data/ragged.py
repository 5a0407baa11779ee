"""A dataset whose collate_fn does more than stack: it numbers samples, joins lists of labels of different lengths.

The large tensors of the samples are kept as rows, as the collate_fn makes them. For each batch the collate_fn is called
with the small parts of the samples and with stand-ins for the large ones: tensors of torch's meta device, which have a
shape and no values. What it makes of the small parts is taken as it is; where a stand-in comes out, rows are gathered.
Anything that depended on the values of a large tensor would be a stand-in itself, or fail.
"""

from __future__ import annotations

import sys
from typing import Any

from hotlap.catalog.resident_data.layout import Layout, take_apart
from hotlap.catalog.resident_data.proof import Proof, prove, visit
from hotlap.catalog.resident_data.rows import TensorRows, Wanted
from hotlap.catalog.resident_data.sameness import NotStacked, Unfit, same
from hotlap.catalog.resident_data.store import Store, compositions, same_strides
from hotlap.catalog.signals import raised_by_signal

LARGE = 4096  # bytes: less is not worth a stand-in
PLAIN = (int, float, bool, complex, str, bytes, type(None))  # cannot be written into


def stored(torch: Any, dataset: Any, collate: Any) -> Store:
    """Raises Unfit where the dataset cannot be kept in either way."""
    proof = prove(torch, dataset)
    try:
        return Store(torch, dataset, collate, proof)
    except NotStacked as plain:
        if not large_parts(torch, proof.samples):
            raise
        try:
            return RaggedStore(torch, dataset, collate, proof)
        except Unfit as ragged:
            raise Unfit(f"{plain}; {ragged}") from ragged


def large_parts(torch: Any, samples: list[Any]) -> list[int]:
    """Which leaves of a sample are large tensors, of one shape in all of them."""
    several = [take_apart(torch, sample, None) for sample in samples]
    if len({len(leaves) for _, leaves in several}) != 1 or any(layout != several[0][0] for layout, _ in several):
        return []
    alike = enumerate(zip(*(leaves for _, leaves in several), strict=True))
    return [number for number, leaves in alike if _is_large(torch, leaves[0]) and len(set(map(_form, leaves))) == 1]


class RaggedStore(Store):
    recordable = False  # a batch does not show the small parts of its samples

    def _prepared(self, proof: Proof) -> list[Any]:
        torch = self.torch
        self._large = large_parts(torch, proof.samples)
        self._sample_layout, leaves = take_apart(torch, proof.samples[0], None)
        self._forms = [_form(leaves[number]) for number in self._large]
        self._standing = {number: _stand_in(torch, leaves[number]) for number in self._large}
        self._small: dict[int, list[Any]] = {}
        _, parts = take_apart(torch, self._outline(self._parts_of(proof.samples)), None)
        self._gathered = [number for number, part in enumerate(parts) if _is_stand_in(torch, part)]
        _, real = take_apart(torch, self._collated(proof.samples), None)
        return self._stacks(real, len(proof.samples))

    def _besides(self, proof: Proof) -> int:
        """Of the largest of the proven samples: labels differ in length."""
        return max(sum(map(_size, parts)) for parts in self._parts_of(proof.samples))

    def _stacks(self, leaves: list[Any], rows: int) -> list[Any]:
        """Of a real batch, the leaves that are kept as rows."""
        found = [leaves[number] for number in self._gathered if number < len(leaves)]
        if not found or len(found) != len(self._gathered) or not all(_is_stack(self.torch, one, rows) for one in found):
            raise Unfit("its collate_fn does not stack the large tensors of its samples")
        return found

    # Samples

    def _parts_of(self, samples: list[Any]) -> list[list[Any]]:
        """The small parts of each sample, in copies, with nothing where the large ones are."""
        return [self._parts(sample) for sample in samples]

    def _parts(self, sample: Any) -> list[Any]:
        layout, leaves = take_apart(self.torch, sample, None)
        if layout != self._sample_layout or [_form(leaves[number]) for number in self._large] != self._forms:
            raise Unfit("its items differ in shape or type, so they cannot be stacked")
        return [None if number in self._standing else self._copied(leaf) for number, leaf in enumerate(leaves)]

    def _copied(self, leaf: Any) -> Any:
        """A collate_fn may write into what it is given."""
        kind = type(leaf)
        if kind in PLAIN:
            return leaf
        if kind is self.torch.Tensor and leaf.device.type == "cpu" and not leaf.requires_grad:
            return leaf.clone()
        if kind.__module__ == "numpy" and not leaf.dtype.hasobject:
            return leaf.copy()
        raise Unfit(f"its items hold a {kind.__name__}")

    def _outline(self, several: list[list[Any]]) -> Any:
        """What the collate_fn makes of the small parts and of stand-ins."""
        samples = []
        for parts in several:
            whole = (self._standing.get(number, part) for number, part in enumerate(parts))
            samples.append(self._sample_layout.build(whole))
        try:
            return self.collate(samples)
        except Exception as error:
            if raised_by_signal(error):
                raise
            raise Unfit(f"its collate_fn reads large tensors ({type(error).__name__}: {error})") from error

    # Keeping and reading

    def _examine(self, rows: Any, samples: list[Any]) -> None:
        self._small.update(zip(rows.tolist(), self._parts_of(samples), strict=True))

    def _unshared(self, share: Any) -> Any:
        return super()._unshared(share), [self._small[row] for row in share.tolist()]

    def _hand_over(self, share: Any, unshared: Any) -> None:
        of_rows, small = unshared
        super()._hand_over(share, of_rows)
        self._small.update(zip(share.tolist(), small, strict=True))

    def _apart(self, batch: Any, rows: int) -> tuple[Layout, list[Any]]:
        _, leaves = take_apart(self.torch, batch, None)
        return self.layout, self._stacks(leaves, rows)

    layout = Layout()  # of a batch it changes with the labels, and is known when one is built

    def built(self, leaves: list[Any], wanted: Wanted, pin: bool) -> Any:
        small = [[self._copied(part) for part in self._small[row]] for row in wanted.indices.tolist()]
        return self._filled(self._outline(small), leaves, pin)

    def _filled(self, outline: Any, leaves: list[Any], pin: bool) -> Any:
        layout, parts = take_apart(self.torch, outline, None)
        if [number for number, part in enumerate(parts) if _is_stand_in(self.torch, part)] != self._gathered:
            raise Unfit("its collate_fn has made something else of a batch")
        for part in parts:
            if type(part) not in (*PLAIN, self.torch.Tensor) and type(part).__module__ != "numpy":
                raise Unfit(f"a batch holds a {type(part).__name__}")
        if pin:
            layout = layout.as_pinned()
        gathered = dict(zip(self._gathered, leaves, strict=True))
        return layout.build(gathered[n] if n in gathered else self._pinned(part, pin) for n, part in enumerate(parts))

    def _pinned(self, part: Any, pin: bool) -> Any:
        return part.pin_memory() if pin and isinstance(part, self.torch.Tensor) else part

    # Checking

    def _check_collate(self, dataset: Any, proof: Proof) -> None:
        """Batches put together from rows and small parts are those the collate_fn makes of whole samples."""
        torch, small = self.torch, self._parts_of(proof.samples)
        trial = self._trial(dataset, proof)
        for chosen in compositions(len(proof.samples)):
            real = self._collated(visit(dataset, [proof.indices[one] for one in chosen]))
            leaves = [rows.take(Wanted(torch.tensor(chosen, device="cpu"))) for rows in trial]
            copies = [[self._copied(part) for part in small[one]] for one in chosen]
            built = self._filled(self._outline(copies), leaves, pin=False)
            (layout, expected), (own, found) = (take_apart(torch, one, None) for one in (real, built))
            if layout != own or not same(torch, expected, found) or not same_strides(torch, expected, found):
                raise Unfit("a sample's part of a batch depends on the other samples")

    def _trial(self, dataset: Any, proof: Proof) -> list[Any]:
        """The proven items kept as rows, each collated alone."""
        count, whole = len(proof.samples), self._collated(proof.samples)
        trial = [TensorRows(self.torch, leaf, count) for leaf in self._apart(whole, count)[1]]
        for position, index in enumerate(proof.indices):
            _, leaves = self._apart(self._collated(visit(dataset, [index])), 1)
            for rows, leaf in zip(trial, leaves, strict=True):
                rows.put(self.torch.tensor([position], device="cpu"), leaf)
        return trial

    def _kept_item(self, wanted: Wanted) -> list[Any]:
        return take_apart(self.torch, self.built(self.batch(wanted), wanted, pin=False), None)[1]

    def _item(self, dataset: Any, row: int) -> list[Any]:
        return take_apart(self.torch, self._collated(visit(dataset, [row])), None)[1]


def _is_large(torch: Any, leaf: Any) -> bool:
    if type(leaf) is not torch.Tensor or leaf.layout != torch.strided or leaf.is_quantized or leaf.requires_grad:
        return False
    return bool(leaf.device.type == "cpu" and leaf.numel() * leaf.element_size() >= LARGE)


def _size(part: Any) -> int:
    return int(getattr(part, "nbytes", 0)) or sys.getsizeof(part)


def _form(leaf: Any) -> Any:
    is_tensor = hasattr(leaf, "stride") and hasattr(leaf, "dtype")
    return (type(leaf), leaf.dtype, leaf.shape, leaf.stride()) if is_tensor else type(leaf)


def _stand_in(torch: Any, leaf: Any) -> Any:
    return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device="meta")


def _is_stand_in(torch: Any, part: Any) -> bool:
    return isinstance(part, torch.Tensor) and part.device.type == "meta"


def _is_stack(torch: Any, leaf: Any, rows: int) -> bool:
    if type(leaf) is not torch.Tensor or leaf.layout != torch.strided:
        return False
    return bool(leaf.dim() > 0 and leaf.shape[0] == rows)
