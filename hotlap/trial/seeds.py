"""Makes random numbers comparable between processes: every seed that the program sets is shifted by the same number.

A program that sets no seed gets one, and so does a numpy generator created without one.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count
from typing import Any

from hotlap.patch.imports import when_imported
from hotlap.patch.ledger import Ledger

SEED = 20_260  # if the program sets none
LARGEST = 2**32 - 1  # seed that numpy accepts


class Seeds:
    def __init__(self, shift: int, ledger: Ledger) -> None:
        self._shift, self._ledger = shift, ledger
        self._without = count(1)  # counts generators created without a seed
        self._nested = False  # one of torch's functions calls another

    def install(self) -> None:
        random.seed(SEED + self._shift)
        self._ledger.wrap(random, "seed", self._shifting(SEED))
        self._ledger.wrap(random.Random, "__init__", self._python_generator)
        when_imported("numpy.random", self._numpy)
        when_imported("torch", self._torch)

    def shifted(self, seed: Any) -> Any:
        """Shift a whole number; anything else (bytes, a state) is left unchanged."""
        if not self._shift or isinstance(seed, bool) or not hasattr(seed, "__index__"):
            return seed
        return int(seed) + self._shift

    def _shifting(self, default: int | None = None, largest: int | None = None) -> Callable[[Any], Any]:
        """Return a layer for a function whose first argument is a seed."""

        def layer(original: Any) -> Any:
            def seed(*args: Any, **kwargs: Any) -> Any:
                if self._nested:
                    return original(*args, **kwargs)
                if args:
                    args = (self._wrapped(args[0], default, largest), *args[1:])
                elif "seed" in kwargs:
                    kwargs["seed"] = self._wrapped(kwargs["seed"], default, largest)
                elif default is not None:
                    args = (default + self._shift + next(self._without),)
                self._nested = True
                try:
                    return original(*args, **kwargs)
                finally:
                    self._nested = False

            seed.__wrapped__ = original  # type: ignore[attr-defined]
            return seed

        return layer

    def _wrapped(self, seed: Any, default: int | None, largest: int | None) -> Any:
        if seed is None and default is not None:
            return default + self._shift + next(self._without)
        moved = self.shifted(seed)
        return moved % (largest + 1) if largest is not None and isinstance(moved, int) and moved > largest else moved

    def _python_generator(self, original: Any) -> Any:
        def __init__(generator: Any, x: Any = None) -> None:  # noqa: N807
            original(generator, self.shifted(x))  # without a seed it stays random: names of temporary files

        return __init__

    def _numpy(self, numpy_random: Any) -> None:
        numpy_random.seed(SEED + self._shift)
        self._ledger.wrap(numpy_random, "seed", self._shifting(SEED, LARGEST))
        self._ledger.wrap(numpy_random, "default_rng", self._shifting(SEED))

    def _torch(self, torch: Any) -> None:
        torch.manual_seed(SEED + self._shift)
        for owner in (torch, torch.random):
            self._ledger.wrap(owner, "manual_seed", self._shifting())
        for name in ("manual_seed", "manual_seed_all"):
            self._ledger.wrap(torch.cuda, name, self._shifting())
        if self._shift:
            self._ledger.wrap(torch, "Generator", self._torch_generator)

    def _torch_generator(self, original: Any) -> Any:
        """Return a subclass that stands in for torch's own type, which cannot be patched."""
        seeds = self

        class Kind(type(original)):  # type: ignore[misc]
            def __instancecheck__(cls, instance: Any) -> bool:
                return isinstance(instance, original)

        class Generator(original, metaclass=Kind):  # type: ignore[misc]
            __wrapped__ = original

            def manual_seed(self, seed: int) -> Any:
                super().manual_seed(seeds.shifted(seed))
                return self

        return Generator
