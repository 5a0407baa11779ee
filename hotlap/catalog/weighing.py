"""What a sample of a dataset costs, and whether it is the same on every visit; found in a process of its own.

That process is started as a loader's worker is. So nothing of the fetch is left in the training process (no random
number drawn, no file opened that a fork must not share, nothing cached or printed), and data that workers could not
load is found out before there are any.
"""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import weakref
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from hotlap.catalog.fetching import Recipe, look
from hotlap.catalog.forked import PATIENCE, NoAnswer, answer, be_silent, in_a_fork, keep_from_writing
from hotlap.catalog.making import Making

MOST_SENT, MOST_TENSORS = 32 << 20, 128


@dataclass(frozen=True, slots=True)
class Weight:
    item_us: float = 0.0
    item_bytes: int = 0
    random: str | None = None  # how a sample differs from visit to visit
    seeded: bool = False  # but not where torch, numpy and random are seeded alike
    on_host: bool = True  # all its tensors are host memory
    plain: bool = True  # nothing but tensors, arrays, numbers and text in plain containers
    digest: str = ""  # of the first samples
    problem: str | None = None  # why nothing else is known


Known = dict[tuple[Any, str], Weight]  # by collate function and start method
_known: dict[int, tuple[weakref.ref[Any], Known]] = {}  # by id: datasets need not be hashable


def weigh(making: Making, method: str | None = None) -> Weight:
    """Asked once per dataset and collate function; a few samples are fetched."""
    method = method or making.start_method
    recipe = _recipe(making)
    known, key = _of(making.dataset), (recipe.collate, method)
    try:
        if key in known:
            return known[key]
    except TypeError:  # a collate function that cannot be hashed: asked each time
        known, key = {}, (None, method)
    known[key] = _by_fork(making.torch, recipe) if method == "fork" else _by_other(making.torch, recipe, method)
    return known[key]


def _recipe(making: Making) -> Recipe:
    given = making.given
    batches = given.get("batch_size", 1) is not None or given.get("batch_sampler") is not None
    collate = given.get("collate_fn")
    if batches and collate is making.torch.utils.data.default_collate:
        collate = None
    sampler, batch_sampler = (_sendable(making.torch, given.get(name)) for name in ("sampler", "batch_sampler"))
    return Recipe(making.dataset, collate, sampler, batch_sampler, batches)


def _sendable(torch: Any, sampler: Any) -> Any:
    """Without its generator, whose state travels as a tensor that is gone before the other process can read it."""
    if type(sampler).__module__ != "torch.utils.data.sampler":
        return sampler
    held = vars(sampler)
    changed = {name: None for name, one in held.items() if isinstance(one, torch.Generator)}
    if isinstance(inner := held.get("sampler"), torch.utils.data.Sampler):
        changed["sampler"] = _sendable(torch, inner)
    other = copy.copy(sampler)
    vars(other).update(changed)
    return other


def _of(dataset: Any) -> Known:
    found = _known.get(id(dataset))
    if found is not None and found[0]() is dataset:
        return found[1]
    weights: Known = {}
    key = id(dataset)
    with suppress(TypeError):  # a list cannot be referred to weakly: it is weighed each time
        _known[key] = (weakref.ref(dataset, lambda _: _known.pop(key, None)), weights)
    return weights


def _by_fork(torch: Any, recipe: Recipe) -> Weight:
    try:
        return Weight(**in_a_fork(torch, partial(_look, recipe), PATIENCE))
    except NoAnswer as why:
        return Weight(problem=str(why))


def _look(recipe: Recipe) -> dict[str, Any]:
    keep_from_writing()
    return look(recipe)


class _Sink(pickle.Pickler):
    """Sends to nowhere, and stops where the data is more than a worker should be sent.

    Torch moves each tensor it sends into shared memory, of which there may be little, and opens a file for it.
    """

    def __init__(self, tensor: Any) -> None:
        super().__init__(self)
        self._tensor, self._bytes, self._tensors = tensor, 0, 0

    def write(self, part: bytes) -> None:
        self._count(len(part))

    def persistent_id(self, thing: Any) -> Any:
        if not isinstance(thing, self._tensor):
            return None
        self._tensors += 1
        self._count(thing.untyped_storage().nbytes())
        return self._tensors

    def _count(self, size: int) -> None:
        self._bytes += size
        if self._bytes > MOST_SENT or self._tensors > MOST_TENSORS:
            raise OverflowError(f"it holds more than {MOST_SENT >> 20} MB or {MOST_TENSORS} tensors in memory")


def _by_other(torch: Any, recipe: Recipe, method: str) -> Weight:
    try:
        _Sink(torch.Tensor).dump(recipe)
    except Exception as error:  # noqa: BLE001 whatever the user's objects raise when they are pickled
        return Weight(problem=f"it cannot be sent to a process started by {method} ({type(error).__name__}: {error})")
    context: Any = multiprocessing.get_context(method)
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_in_spawned, args=(_Silence(), recipe, send), daemon=True)
    try:
        process.start()
    except Exception as error:  # noqa: BLE001 whatever the user's objects raise when they are pickled
        return Weight(problem=f"it cannot be sent to a process started by {method} ({type(error).__name__}: {error})")
    send.close()
    try:
        return Weight(**answer(_received(receive), PATIENCE))
    except NoAnswer as why:
        return Weight(problem=str(why))
    finally:
        process.kill()
        process.join()


def _received(pipe: Any) -> bytes | None:
    try:
        return bytes(pipe.recv_bytes()) if pipe.poll(PATIENCE) else None
    except EOFError:
        return b""


class _Silence:
    """Falls where it is unpickled: what comes after it may fail to be, which is not for the user's eyes."""

    def __reduce__(self) -> Any:
        return be_silent, ()


def _in_spawned(_: Any, recipe: Recipe, send: Any) -> None:
    import torch

    torch.set_num_threads(1)
    send.send_bytes(pickle.dumps(_look(recipe)))
