"""Stores datasets with a custom collate_fn, such as one that numbers samples or joins label lists of unequal length.

The large tensors of the samples are kept as rows. For each batch the collate_fn is called with the small parts of the
samples and with stand-ins for the large tensors, which have a shape but no values. It may only stack the stand-ins of
one leaf, in order; gathered rows then replace the result. Any other use of a stand-in is noticed, even if the
collate_fn catches the error it raises, and the batch is fetched the program's own way.
"""

from __future__ import annotations

import sys
from typing import Any

from hotlap.catalog.resident_data.rows import BatchIndices, Rows, TensorRows
from hotlap.catalog.resident_data.store import Store
from hotlap.loading.copies import copied, faithful_copy
from hotlap.loading.pure import Pure, passes_on, pure, pure_collate, visit
from hotlap.loading.purity import Study
from hotlap.loading.samples import Layout, same, take_apart
from hotlap.loading.unsuited import Unfit
from hotlap.patch.signals import comes_from_outside

LARGE = 4096  # bytes: smaller tensors are not worth a stand-in
SHARING = "its batches may share memory with the dataset, so the program could write into it"
PLAIN = (int, float, bool, complex, str, bytes, type(None))  # cannot be written into


def stored(torch: Any, dataset: Any, collate: Any) -> Store:
    """Return an empty store for the dataset. Raises Unfit if neither kind of store can hold it."""
    known = pure(dataset)
    if is_default(torch, collate):
        return Store(torch, dataset, collate, known)
    own = pure_collate(collate, known)
    if not known.study.result.deep and not own.result.deep:
        raise Unfit(SHARING)
    return RaggedStore(torch, dataset, collate, known, own)


def is_default(torch: Any, collate: Any) -> bool:
    """Return whether this is torch's default_collate; one that the program has changed is not known to be pure."""
    return collate is torch.utils.data._utils.collate.default_collate


class RaggedStore(Store):
    forks_only = True

    def __init__(self, torch: Any, dataset: Any, collate: Any, known: Pure, own: Study) -> None:
        self._passes_on = passes_on(collate, known)
        super().__init__(torch, dataset, collate, known, own)

    def use(self, collate: Any) -> None:
        own = pure_collate(collate, self.pure)
        if not self.pure.study.result.deep and not own.result.deep:
            raise Unfit(SHARING)
        self._passes_on = self._passes_on or passes_on(collate, self.pure)
        self.collate, self.watch = collate, self.pure.watch(self.torch, own)

    def _prepared(self, samples: list[Any]) -> list[Any]:
        torch = self.torch
        taken_apart = [take_apart(torch, sample, None) for sample in samples]
        self._sample_layout, leaves = taken_apart[0]
        alike = all(
            layout == self._sample_layout and len(sample_leaves) == len(leaves) for layout, sample_leaves in taken_apart
        )
        self._large = [
            number
            for number, leaf in enumerate(leaves)
            if alike
            and _is_large(torch, leaf)
            and all(_form(sample_leaves[number]) == _form(leaf) for _, sample_leaves in taken_apart)
        ]
        if not self._large:
            raise Unfit("its collate_fn is custom, and its samples have no large tensors of one shape")
        self._forms = [_form(leaves[number]) for number in self._large]
        self._small: dict[int, list[Any]] = {}
        stacks = [torch.stack([sample_leaves[number] for _, sample_leaves in taken_apart]) for number in self._large]
        ours = self._built(self._parts_of(samples), [stack.clone() for stack in stacks], pin=False)
        if not same(torch, ours, self._collated(samples)):
            raise Unfit("its collate_fn makes a different batch from stand-ins than from the samples themselves")
        return stacks

    layout = Layout()  # unused: the layout changes with the labels and is known only when a batch is built

    def _besides(self, samples: list[Any]) -> int:
        """Return the bytes of small parts in the largest of these samples: labels differ in length."""
        return max(sum(map(_size, parts)) for parts in self._parts_of(samples))

    def _empty_rows(self, leaves: list[Any]) -> list[Rows]:
        return [TensorRows(self.torch, leaf, self.total) for leaf in leaves]

    # Samples

    def _parts_of(self, samples: list[Any]) -> list[list[Any]]:
        """Return copies of the small parts of each sample, with None in place of the large ones."""
        return [self._parts(sample) for sample in samples]

    def _parts(self, sample: Any) -> list[Any]:
        layout, leaves = take_apart(self.torch, sample, None)
        if layout != self._sample_layout or [_form(leaves[number]) for number in self._large] != self._forms:
            raise Unfit("its items differ in shape or type, so they cannot be stacked")
        small = [None if number in self._large else leaf for number, leaf in enumerate(leaves)]
        if self._passes_on:
            return list(faithful_copy(self.torch, small))
        return list(copied(self.torch, small))

    def put(self, rows: Any, batch: Any) -> None:
        """Do nothing: everything to keep was already taken from the samples."""

    def _examine(self, rows: Any, samples: list[Any]) -> None:
        small = self._parts_of(samples)
        leaves_of_samples = [take_apart(self.torch, sample, None)[1] for sample in samples]
        with self.torch.inference_mode(False):
            for leaf_rows, number in zip(self.rows, self._large, strict=True):
                leaf_rows.put(rows, self.torch.stack([leaves[number] for leaves in leaves_of_samples]))
        self._note(rows, small)

    def _note(self, rows: Any, small: list[list[Any]]) -> None:
        self._small.update(zip(rows.tolist(), small, strict=True))
        self._left -= len(rows[~self._have[rows]].unique())
        self._have[rows] = True

    # Batches made by the program's workers, sent with the small parts of their samples, which a batch does not show

    def collate_in_workers(self) -> Any:
        return self._collate_with_parts

    def _collate_with_parts(self, samples: list[Any]) -> tuple[Any, Any]:
        """Runs in a worker, which was forked from this process."""
        try:
            parts = self._parts_of(samples)
        except Unfit:
            parts = None
        return self.collate(samples), parts

    def shown(self, rows: Any, made: Any) -> None:
        batch, small = made
        if small is None:
            raise Unfit("its items differ in shape or type, so they cannot be stacked")
        _, places = take_apart(self.torch, self._outline(small), None)
        _, leaves = take_apart(self.torch, batch, None)
        every = tuple(range(len(small)))
        with self.torch.inference_mode(False):
            for leaf_rows, number in zip(self.rows, self._large, strict=True):
                stacks = [
                    leaf for place, leaf in zip(places, leaves, strict=True) if self._stands(place, number, every)
                ]
                if not stacks:
                    raise Unfit("its collate_fn does not stack the large tensors of its samples")
                leaf_rows.put(rows, stacks[0])
        self._note(rows, small)

    def _stands(self, place: Any, number: int, rows: tuple[int, ...]) -> bool:
        if not isinstance(place, stand_in_class(self.torch)):
            return False
        return bool(place.is_stack and place.leaf == number and place.rows == rows)

    def batch_of(self, made: Any) -> Any:
        return made[0]

    # Batches

    def built(self, leaves: list[Any], wanted: BatchIndices, pin: bool) -> Any:
        small = [copied(self.torch, self._small[row]) for row in wanted.indices.tolist()]
        return self._built(small, leaves, pin)

    def _built(self, small: list[list[Any]], stacks: list[Any], pin: bool) -> Any:
        layout, leaves = take_apart(self.torch, self._outline(small), None)
        rows = tuple(range(len(small)))
        left = dict(enumerate(stacks))  # a leaf that is stacked twice becomes two tensors
        made: dict[int, Any] = {}  # an object that is in the batch twice stays one object
        for leaf in leaves:
            if id(leaf) not in made:
                made[id(leaf)] = self._filled(leaf, stacks, left, rows, pin)
        found = [made[id(leaf)] for leaf in leaves]
        return (layout.as_pinned() if pin else layout).build(iter(found))

    def _filled(self, leaf: Any, stacks: list[Any], left: dict[int, Any], rows: tuple[int, ...], pin: bool) -> Any:
        if isinstance(leaf, stand_in_class(self.torch)):
            if leaf.rows != rows or not leaf.is_stack:
                raise Unfit("its collate_fn does not stack the large tensors of its samples")
            number = self._large.index(leaf.leaf)
            return left.pop(number) if number in left else stacks[number].clone()
        if type(leaf) not in (*PLAIN, self.torch.Tensor) and type(leaf).__module__ != "numpy":
            raise Unfit(f"a batch holds a {type(leaf).__name__}")
        return leaf.pin_memory() if pin and isinstance(leaf, self.torch.Tensor) else leaf

    def _outline(self, small: list[list[Any]]) -> Any:
        """Return what the collate_fn makes of the small parts and stand-ins."""
        make, forms = stand_in_class(self.torch).make, dict(zip(self._large, self._forms, strict=True))
        samples = [
            self._sample_layout.build(
                make(forms[number], number, row) if number in forms else leaf for number, leaf in enumerate(leaves)
            )
            for row, leaves in enumerate(small)
        ]
        stand_in = stand_in_class(self.torch)
        stand_in.touched = None
        try:
            batch = self.collate(samples)
        except (Exception, StandInRead) as error:
            if comes_from_outside(error):
                raise
            raise Unfit(f"its collate_fn does more with large tensors than stack them ({error})") from error
        if stand_in.touched is not None:
            raise Unfit(f"its collate_fn does more with large tensors than stack them ({stand_in.touched})")
        return batch

    # Checking

    def _kept_item(self, wanted: BatchIndices) -> list[Any]:
        return take_apart(self.torch, self.built(self.batch(wanted), wanted, pin=False), None)[1]

    def _item(self, dataset: Any, row: int) -> list[Any]:
        return take_apart(self.torch, self._collated(visit(dataset, [row])), None)[1]


class StandInRead(BaseException):
    """The collate_fn read something that a stand-in does not have. Not caught by the program's `except Exception`."""


_classes: dict[Any, Any] = {}
ANSWERED = frozenset("shape dtype ndim size dim numel nelement element_size stride is_contiguous __len__".split())


def stand_in_class(torch: Any) -> Any:
    """Return the stand-in class, created lazily: the catalogue is read without torch."""
    if torch not in _classes:
        _classes[torch] = _stand_in_class(torch)
    return _classes[torch]


def _stand_in_class(torch: Any) -> Any:
    class StandIn(torch.Tensor):  # type: ignore[misc]
        """Stands in for a large tensor of one sample, or a stack of them."""

        leaf: int
        rows: tuple[int, ...]
        is_stack: bool
        touched: str | None = None  # on the class: what was last requested of any stand-in

        @staticmethod
        def make(form: Any, leaf: int, row: int) -> Any:
            _, dtype, shape, stride = form
            made = torch.empty_strided(shape, stride, dtype=dtype, device="meta").as_subclass(StandIn)
            made.leaf, made.rows, made.is_stack = leaf, (row,), False
            return made

        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = getattr(func, "__name__", "")
            if name == "__get__":
                name = getattr(func.__self__, "__name__", "")
            if func is torch.stack:
                return cls._stacked(*args, **(kwargs or {}))
            if name not in ANSWERED:
                raise cls._touched(f"it calls {name}")
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))

        @classmethod
        def _touched(cls, what: str) -> StandInRead:
            cls.touched = what
            return StandInRead(what)

        @classmethod
        def _stacked(cls, tensors: Any, dim: int = 0, *, out: Any = None) -> Any:
            samples = list(tensors)
            if (what := _why_not_stacked(cls, samples, dim, out)) is not None:
                raise cls._touched(what)
            first = samples[0]
            with torch._C.DisableTorchFunctionSubclass():
                plain = torch.empty((len(samples), *first.shape), dtype=first.dtype, device="meta").as_subclass(cls)
            plain.leaf, plain.is_stack = first.leaf, True
            plain.rows = tuple(row for tensor in samples for row in tensor.rows)
            return plain

    StandIn.__name__ = StandIn.__qualname__ = "Tensor"
    return StandIn


def _why_not_stacked(kind: Any, tensors: list[Any], dim: int, out: Any) -> str | None:
    if out is not None:
        return "it stacks them into its own memory"
    if dim != 0 or any(type(tensor) is not kind or tensor.is_stack for tensor in tensors):
        return "it stacks them with other tensors"
    return "it stacks different parts of samples" if len({tensor.leaf for tensor in tensors}) != 1 else None


def _is_large(torch: Any, leaf: Any) -> bool:
    if type(leaf) is not torch.Tensor or leaf.layout != torch.strided or leaf.is_quantized or leaf.requires_grad:
        return False
    return bool(leaf.device.type == "cpu" and leaf.numel() * leaf.element_size() >= LARGE)


def _size(leaf: Any) -> int:
    return int(getattr(leaf, "nbytes", 0)) or sys.getsizeof(leaf)


def _form(leaf: Any) -> Any:
    is_tensor = hasattr(leaf, "stride") and hasattr(leaf, "dtype")
    return (type(leaf), leaf.dtype, leaf.shape, leaf.stride()) if is_tensor else type(leaf)
