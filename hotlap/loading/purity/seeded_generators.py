"""Random number generators that the call itself creates from a seed, which decides what they draw.

Without a seed they are seeded at random, except for torch's, which starts with a fixed seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any

from hotlap.loading.purity.genuine import genuine
from hotlap.loading.purity.plain import type_name
from hotlap.loading.purity.study import Impure
from hotlap.loading.purity.values import Value


class SeededGenerator:
    """Stands for any such generator: all that is known is that a seed decides what it will draw."""


BEGINS_BY_ITSELF = "torch._C.Generator"
MAKERS = frozenset(
    (
        *(BEGINS_BY_ITSELF, "random.Random"),
        *("numpy.random.mtrand.RandomState", "numpy.random.RandomState"),
        *("numpy.random._generator.default_rng", "numpy.random.default_rng"),
    )
)
SEEDED = SeededGenerator()
GENERATOR = Value(made=(SEEDED,))

WITH_GENERATOR = frozenset("rand randn randint randperm normal bernoulli multinomial poisson".split())
FILLING = frozenset("random_ uniform_ normal_ bernoulli_ exponential_ geometric_ log_normal_ cauchy_".split())
PICKING = frozenset("choice choices sample permutation permuted".split())
DRAWING = frozenset(
    "random uniform normal integers standard_normal rand randn randint randrange random_sample getrandbits "
    "triangular gauss normalvariate lognormvariate expovariate betavariate gammavariate vonmisesvariate paretovariate "
    "weibullvariate lognormal exponential standard_exponential poisson binomial beta gamma standard_gamma laplace "
    "logistic rayleigh weibull gumbel pareto power vonmises wald dirichlet multinomial multivariate_normal chisquare "
    "geometric negative_binomial hypergeometric standard_t standard_cauchy f zipf logseries initial_seed".split()
)


def makes_generator(function: Any, args: Sequence[Value], kwargs: Mapping[str, Value]) -> bool:
    """Return whether a call of the function creates a seeded generator."""
    name = type_name(function) if isinstance(function, type) else _name_of_compiled(function)
    if name not in MAKERS or not genuine(function):
        return False
    values = [*args, *kwargs.values()]
    if name == BEGINS_BY_ITSELF:
        return all(str(value.known) == "cpu" for value in values)
    return len(values) == 1 and _is_seed(values[0])


def _name_of_compiled(function: Any) -> str:
    python = isinstance(function, FunctionType)
    return "" if python else f"{getattr(function, '__module__', '')}.{getattr(function, '__name__', '')}"


def _is_seed(value: Value) -> bool:
    """Return whether the value is a number and cannot be None, with which a generator is seeded at random."""
    if value.items is not None:
        return all(map(_is_seed, value.items))
    return value.item or value.number or type(value.known) in (int, float, str)


def is_seeded(value: Value | None) -> bool:
    return value is not None and value.made == (SEEDED,) and not value.plain and not value.objects


def require_known(name: str, args: Sequence[Value], kwargs: Mapping[str, Value]) -> None:
    """Raise Impure unless a call of this method of a seeded generator is known to be pure."""
    if name in ("seed", "manual_seed"):
        if len(args) != 1 or kwargs or not _is_seed(args[0]):
            raise Impure("seeds a generator at random")
    elif name not in DRAWING | PICKING and name != "shuffle":
        raise Impure(f"calls .{name}() of a generator, which is not known to be pure")
    if "out" in kwargs:
        raise Impure("draws into an array")
