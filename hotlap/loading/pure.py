"""Datasets whose items are known to be the same at each fetch, as long as what fetching reads is unchanged."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from threading import get_ident
from typing import Any

from hotlap.loading.identity import AlsoOfLists
from hotlap.loading.outside_profiles import has_modes
from hotlap.loading.purity import Impure, Study, study_of, study_of_collate
from hotlap.loading.purity.values import borrowed
from hotlap.loading.settings import are_errors_heard, are_warnings_shown_again, replaced_kernels
from hotlap.loading.state import State, Watch
from hotlap.loading.subsets import Levels
from hotlap.loading.unsuited import Unfit
from hotlap.patch.signals import comes_from_outside, is_in_handler

MOST_READINGS = 8
MANY = 6  # datasets of one class, after which it matters whether they are read again
TOOLS = 6  # number of tool ids in sys.monitoring


class Pure:
    """What is known of a pure dataset, for as long as the dataset lives; it does not hold the dataset."""

    def __init__(self, study: Study, readings: int = 1) -> None:
        self.study, self.readings = study, readings
        self.seconds = 0.0  # per item fetched
        self._then = State(study, contents=False)

    def is_outdated(self) -> bool:
        """Return whether the code, or an object that it uses, has been replaced."""
        return self._then.changed_now() is not None

    def watch(self, torch: Any, *studies: Study, contents: bool = True) -> Watch:
        """Watch for changes from now on; raises Unfit if they would go unnoticed.

        `contents=False` is for callers that read the contents again themselves.
        """
        return Watch(torch, self.study, *studies, contents=contents)

    @contextmanager
    def handles_closed_after(self, dataset: Any) -> Iterator[None]:
        """Close again the files that the first fetch in this block opens, since forked workers must not share them."""
        owners = [(owner(), name) for owner, name, _ in self.study.opened.values()]
        holders: list[tuple[Any, str]] = [(vars(owner), name) for owner, name in owners if owner is not None]
        before = [(held, name, held.get(name, _ABSENT)) for held, name in holders]
        try:
            yield
        finally:
            for held, name, value in before:
                if value is _ABSENT:
                    held.pop(name, None)
                else:
                    held[name] = value


_ABSENT: Any = object()
_known: AlsoOfLists[Pure | str] = AlsoOfLists()
_drawing: AlsoOfLists[Pure | str] = AlsoOfLists()


def pure(dataset: Any) -> Pure:
    """Return what is known of a dataset; raises Unfit with the reason if its items may not always be the same.

    The code is read once for each dataset, and again if what was read has changed.
    """
    _require_untraced()
    known = _known.get(dataset)
    if known is None or (isinstance(known, Pure) and known.is_outdated()):
        known = _studied(dataset, 0 if known is None else known.readings)
        _known.put(dataset, known)
    if isinstance(known, str):
        raise Unfit(f"{known}; its items may not always be the same")
    if are_warnings_shown_again() or are_errors_heard():
        raise Unfit("the program is shown all warnings or numerical errors, and those of an item would come only once")
    return known


def _require_untraced() -> None:
    """Raise Unfit if the program is traced; call it before anything is read, which a torch mode would see."""
    if is_traced():
        raise Unfit("the program's calls or operations are traced, and the trace would show fewer")


def is_traced() -> bool:
    """Return whether the program traces its own calls, as cProfile, a debugger or a coverage tool does, or its
    operations, as torch modes and kernels of its own do.
    """
    if sys.gettrace() is not None or sys.getprofile() is not None:
        return True
    torch = sys.modules["torch"]
    if has_modes(torch) or replaced_kernels(torch):
        return True
    tools = getattr(sys, "monitoring", None)  # since Python 3.12
    return tools is not None and any(tools.get_events(tool) for tool in range(TOOLS) if tools.get_tool(tool))


def _studied(dataset: Any, before: int, draws: bool = False) -> Pure | str:
    if before >= MOST_READINGS:
        return "what it is made from keeps changing"
    try:
        return Pure(study_of(dataset, draws), before + 1)
    except (Impure, Unfit) as why:
        return str(why)


def pure_collate(collate: Any, known: Pure) -> Study:
    try:
        return study_of_collate(collate, known.study.result)
    except (Impure, Unfit) as why:
        raise Unfit(f"its collate_fn is not known to be pure: {why}") from None


def passes_on(collate: Any, known: Pure) -> bool:
    """Return whether parts of samples may reach a batch as they are, and not as copies."""
    try:
        return not study_of_collate(collate, borrowed(known.study.result)).result.deep
    except Impure:  # it writes into samples
        return True


def pure_but_for_draws(dataset: Any, collate: Any = None) -> tuple[Study, ...]:
    """Return the studies of fetching in workers that torch seeds; raises Unfit.

    Fetching may draw from the streams of torch, NumPy and random, and from no others.
    """
    _require_untraced()
    known = _drawing.get(dataset)
    if known is None or (isinstance(known, Pure) and known.is_outdated()):
        known = _studied(dataset, 0 if known is None else known.readings, draws=True)
        _drawing.put(dataset, known)
    if isinstance(known, str):
        raise Unfit(f"{known}; what its workers keep from one epoch to the next is not known")
    study = known.study
    if collate is None:
        return (study,)
    try:
        return study, study_of_collate(collate, study.result, draws=True)
    except (Impure, Unfit) as why:
        raise Unfit(f"its collate_fn is not known to be pure: {why}") from None


def forget(dataset: Any, why: str) -> None:
    """Record why a dataset turned out not to be pure, for all later callers of `pure`."""
    _known.put(dataset, why)


class RepeatedClasses:
    """Counts datasets per class: if a program keeps making new ones, proving each costs more than reading it once."""

    def __init__(self) -> None:
        self._of: dict[type, tuple[int, int]] = {}  # datasets proven, and how many of them were read again

    def proven(self, kind: type) -> None:
        made, again = self._of.get(kind, (0, 0))
        self._of[kind] = made + 1, again

    def read_again(self, kind: type) -> None:
        made, again = self._of.get(kind, (0, 0))
        self._of[kind] = made, again + 1

    def why_not(self, kind: type) -> str | None:
        made, again = self._of.get(kind, (0, 0))
        too_often = made >= MANY and 2 * again < made
        return f"{made} datasets of its class were made, and most were read only once" if too_often else None


def fetch(dataset: Any, indices: Sequence[int]) -> list[Any]:
    """Fetch items as torch's own fetcher does."""
    if hasattr(dataset, "__getitems__") and dataset.__getitems__:
        return list(dataset.__getitems__(list(indices)))
    return [dataset[index] for index in indices]


def visit(dataset: Any, indices: Sequence[int]) -> list[Any]:
    """Fetch items for our own use; raises Unfit if one cannot be fetched, an error the program will meet itself."""
    with warnings_raised():
        try:
            samples = fetch(dataset, indices)
        except Exception as error:
            if comes_from_outside(error):
                raise
            raise Unfit(f"an item cannot be fetched ({type(error).__name__}: {error})") from error
    if len(samples) != len(indices):
        raise Unfit(f"{len(indices)} items were requested and {len(samples)} returned")
    return samples


class _OfThreads(type):
    """A warning class that matches any warning of some threads; other threads and signal handlers warn as usual.

    So do files that are never closed: an error raised in a finaliser reaches nobody and is printed.
    """

    threads: list[int]  # several times where blocks nest

    def __subclasscheck__(cls, kind: type) -> bool:
        return get_ident() in cls.threads and kind is not ResourceWarning and not is_in_handler()


# One class for good: a class is a reference cycle, which the program's garbage collection would find and count.
_FETCHING = _OfThreads("WarningOfTheseThreads", (), {"threads": []})


@contextmanager
def warnings_raised() -> Iterator[None]:
    """Raise warnings as errors, so that the program gets them itself, including those that torch gives only once.

    The filter goes straight into the list and out again: through the API, Python would forget which warnings it has
    shown.
    """
    torch, numpy = sys.modules["torch"], sys.modules.get("numpy")
    always, filters, thread = torch.is_warn_always_enabled(), warnings.filters, get_ident()
    entry = ("error", None, _FETCHING, None, 0)
    _FETCHING.threads.append(thread)
    torch.set_warn_always(True)
    filters.insert(0, entry)  # type: ignore[attr-defined]
    try:
        with nullcontext() if numpy is None else numpy.errstate(all="warn"):
            yield
    finally:
        if entry in filters:
            filters.remove(entry)  # type: ignore[attr-defined]
        _FETCHING.threads.remove(thread)
        torch.set_warn_always(always)


def levels_of(torch: Any, dataset: Any) -> Levels:
    try:
        return Levels(torch, dataset)
    except (TypeError, ValueError, NotImplementedError) as error:  # indices of another type, or no length
        raise Unfit(f"its rows cannot be determined: {error}") from error


def length_of(dataset: Any) -> int:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError) as error:
        raise Unfit("its dataset has no length") from error
