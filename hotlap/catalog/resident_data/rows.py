"""Stores one leaf of all samples as rows; a batch is a selection of rows by index."""

from __future__ import annotations

from typing import Any

from hotlap.loading.unsuited import Unfit

AT_A_TIME = 16  # batches gathered by one call …
MOST_BYTES = 8 << 20  # … but no more than this: a batch kept by the program keeps the others' memory alive
MOST_ON_HOST = 16 << 10  # bytes of a batch: a larger one takes longer to copy out than to gather
ALIGNED = 128  # bytes: kernels are chosen by alignment, and a separately allocated batch is aligned


class BatchIndices:
    """The indices of one batch, copied to a device once, from pinned memory, without waiting."""

    __slots__ = ("_indices", "length", "order", "start")

    def __init__(self, indices: Any, order: Order | None = None, start: int = 0, length: int = 0) -> None:
        """Without `indices`, they are the `length` indices from `start` in `order`, cut when needed."""
        self._indices, self.order, self.start = indices, order, start
        self.length = length if indices is None else len(indices)

    @property
    def indices(self) -> Any:
        if self._indices is None:
            assert self.order is not None
            self._indices = self.order.indices.narrow(0, self.start, self.length)
        return self._indices

    def on(self, device: Any) -> Any:
        if device.type == "cpu":
            return self.indices
        if self.order is not None:
            return self.order.on(device)[self.start : self.start + self.length]
        return to_device(self.indices, device)


class Order:
    """All indices of an epoch, batch after batch."""

    def __init__(self, indices: Any) -> None:
        self.indices = indices
        self._elsewhere: dict[Any, Any] = {}
        self.ahead: dict[Any, tuple[int, int, int, Any]] = {}  # (rows, device, pinned) → from, size, version, batches

    def on(self, device: Any) -> Any:
        if device.type == "cpu":
            return self.indices
        if device not in self._elsewhere:
            # Not through pinned memory: once per epoch, allocating it takes longer than it would save, and programs
            # that empty caches free it again. The host continues as soon as the indices are read.
            self._elsewhere[device] = self.indices.to(device, non_blocking=True)
        return self._elsewhere[device]


def to_device(tensor: Any, device: Any) -> Any:
    pinned = tensor if device.type != "cuda" or tensor.is_pinned() else tensor.pin_memory()
    return pinned.to(device, non_blocking=True)  # the host allocator keeps the pinned block until the copy has ended


class TensorRows:
    def __init__(self, torch: Any, like: Any, total: int, base: Any = None) -> None:
        """`like` is this leaf in some batch; `base`, if given, already holds all rows."""
        self._order = _tail_order(like)
        self._plain = self._order == tuple(range(1, like.dim()))
        self._back = (0, *(1 + self._order.index(dim) for dim in range(1, like.dim())))
        self._dtype, self._tail = like.dtype, like.shape[1:]
        self._row_bytes = self.row_bytes(like)
        shape = (total, *(like.shape[dim] for dim in self._order))
        self.base = torch.empty(shape, dtype=like.dtype, device=like.device) if base is None else base
        self._own = base is None  # else the program may write into it through an array, which no version counter shows
        self._require_operations(torch)
        self._copies: dict[Any, Any] = {}  # device → the same rows there
        self._copied_at: dict[Any, int] = {}  # device → the version of `base` then

    def _require_operations(self, torch: Any) -> None:
        """Raise Unfit if torch cannot copy rows of this type, such as float8 on a CPU."""
        none = torch.empty(0, dtype=torch.int64, device=self.base.device)
        try:
            picked = self.base.index_select(0, none)
            if self._own:
                self.base.index_copy_(0, none, picked)
        except (NotImplementedError, RuntimeError) as error:
            raise Unfit(f"rows of {self._dtype} cannot be copied ({error})") from None

    @staticmethod
    def row_bytes(like: Any) -> int:
        return int(like[0].numel() * like.element_size())

    def own(self) -> None:
        """Copy the rows, so that writes to the tensor they were read from no longer matter."""
        now = self.base._version
        self.base, self._own = self.base.clone(), True
        self._copies = {device: copy for device, copy in self._copies.items() if self._copied_at[device] == now}
        self._copied_at = dict.fromkeys(self._copies, self.base._version)

    def put(self, rows: Any, leaf: Any) -> None:
        if leaf.dtype != self._dtype or leaf.shape[1:] != self._tail:
            raise Unfit(f"batches differ: {leaf.dtype} {list(leaf.shape[1:])} and {self._dtype} {list(self._tail)}")
        laid = leaf if self._plain else leaf.permute(0, *self._order)
        self.base.index_copy_(0, rows.to(self.base.device), laid)

    def take(self, wanted: BatchIndices, device: Any = None, pin: bool = False) -> Any:
        base = self.base if device is None else self._copy_on(device)
        pin = pin and base.is_cpu
        key, order = (id(self), device, pin), wanted.order if self._own or device is not None else None
        picked = None if order is None else self._from_ahead(key, base, order, wanted.start, wanted.length)
        if picked is None:
            picked = base.index_select(0, wanted.on(base.device))
            picked = picked.pin_memory() if pin else picked
        return picked if self._plain else picked.permute(self._back).data  # to the program it is not a view

    def _from_ahead(self, key: tuple[int, Any, bool], base: Any, order: Order, start: int, length: int) -> Any:
        """Gather several batches at once and hand them out one by one: a slice costs a fraction of a gather.

        `.data` gives each batch its own version counter, so that writing into one does not mark the others as written.
        On the host each batch is a copy: saving a slice to a file would save the others with it. If rows were written
        since, they are gathered again.
        """
        now = self.base._version
        first, size, version, batches = order.ahead.get(key, (0, 1, now, ()))
        at, rest = divmod(start - first, size)
        known = not rest and 0 <= at < len(batches) and (size == length or batches[at].shape[0] == length)
        if not known or version != now:
            batches = self._gathered(base, order, start, length, key[2])
            if batches is None:
                return None
            order.ahead[key] = (start, length, now, batches)
            at = 0
        return batches[at].data if key[2] or not base.is_cpu else batches[at].clone()

    def _gathered(self, base: Any, order: Order, start: int, length: int, pin: bool) -> Any:
        """Return some batches from `start` on, or None if that does not pay; an epoch's last one may be smaller."""
        batch_bytes = length * self._row_bytes
        count = min(AT_A_TIME, MOST_BYTES // max(1, batch_bytes))
        if count < 2 or batch_bytes % ALIGNED or (base.is_cpu and not pin and batch_bytes > MOST_ON_HOST):
            return None
        rows = base.index_select(0, order.on(base.device)[start : start + count * length])
        return (rows.pin_memory() if pin else rows).split(length)

    def copy_to(self, device: Any) -> None:
        if device not in self._copies:
            self._copies[device] = self.base.to(device)  # done once, so waiting is fine
            self._copied_at[device] = self.base._version

    def _copy_on(self, device: Any) -> Any:
        if self._copied_at[device] != self.base._version:
            raise Unfit(f"its tensors were modified after they were copied to {device}")
        return self._copies[device]

    def bytes_for(self, device: Any) -> int:
        return 0 if device in self._copies else int(self.base.numel() * self.base.element_size())


def _tail_order(like: Any) -> tuple[int, ...]:
    """Return the dimensions after the first, outermost in memory first, so that channels_last is preserved."""
    usual = tuple(range(1, like.dim()))
    if like.is_contiguous():
        return usual
    order = tuple(sorted(usual, key=lambda dim: -like.stride(dim)))
    if not like.permute(0, *order).is_contiguous():
        raise Unfit("a batch has gaps in memory")
    return order


class TextRows:
    """Strings, kept as Python objects and selected one by one."""

    def __init__(self, like: Any, total: int) -> None:
        self._made = type(like)
        self._rows: list[Any] = [None] * total

    @staticmethod
    def row_bytes(like: Any) -> int:
        return 64 + max(len(text) for text in like)

    def put(self, rows: Any, leaf: Any) -> None:
        for row, text in zip(rows.tolist(), leaf, strict=True):
            self._rows[row] = text

    def take(self, wanted: BatchIndices, device: Any = None, pin: bool = False) -> Any:
        """Return the strings of a batch; pinning turns their container into a list."""
        picked = [self._rows[row] for row in wanted.indices.tolist()]
        return picked if pin else self._made(picked)


Rows = TensorRows | TextRows


def rows_for(torch: Any, like: Any, total: int) -> Rows:
    return TensorRows(torch, like, total) if isinstance(like, torch.Tensor) else TextRows(like, total)
