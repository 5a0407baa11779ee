"""Generators of random numbers that the call itself makes, from a seed of its own: what they draw is decided by that.

One that is made without a seed takes it from chance, but for torch's, which begins with a number of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any

from hotlap.loading.purity.pure_operations import genuine, type_name
from hotlap.loading.purity.study import Impure
from hotlap.loading.purity.values import Value


class SeededGenerator:
    """It is the same whichever it is: nothing is known of what it will draw but that a seed decides it."""


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


def makes_generator(thing: Any, args: Sequence[Value], kwargs: Mapping[str, Value]) -> bool:
    """Whether a call of it gives a generator that a seed has decided."""
    name = type_name(thing) if isinstance(thing, type) else _name_of_compiled(thing)
    if name not in MAKERS or not genuine(thing):
        return False
    values = [*args, *kwargs.values()]
    if name == BEGINS_BY_ITSELF:
        return all(str(value.known) == "cpu" for value in values)
    return len(values) == 1 and _is_seed(values[0])


def _name_of_compiled(thing: Any) -> str:
    python = isinstance(thing, FunctionType)
    return "" if python else f"{getattr(thing, '__module__', '')}.{getattr(thing, '__name__', '')}"


def _is_seed(value: Value) -> bool:
    """What may turn out to be None is found when items are fetched a second time."""
    return value.plain and value.known is not None and not value.objects and not value.made


def is_seeded(value: Value | None) -> bool:
    return value is not None and value.made == (SEEDED,) and not value.plain and not value.objects


def require_known(name: str, args: Sequence[Value], kwargs: Mapping[str, Value]) -> None:
    """Of a method of such a generator."""
    if name in ("seed", "manual_seed"):
        if len(args) != 1 or kwargs or not _is_seed(args[0]):
            raise Impure("takes the seed of a generator from chance")
    elif name not in DRAWING | PICKING and name != "shuffle":
        raise Impure(f"calls .{name}() of a generator, which is not known to be pure")
    if "out" in kwargs:
        raise Impure("draws into an array")
