"""Values of the wrong type are rejected when a recipe is made, with the value and what to write instead."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from hotlap.engine import Checkpoints, Cosine, Phase, Recipe
from hotlap.engine.errors import BadRecipe


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"batch_size": "32"}, "batch_size='32'; use a whole number, 1 or more"),
        ({"batch_size": 32.5}, "batch_size=32.5; use"),
        ({"batch_size": float("nan")}, "batch_size=nan; use"),
        ({"batch_size": True}, "batch_size=True; use"),
        ({"evaluation_batch": 2.5}, "evaluation_batch=2.5; use a whole number, 1 or more, or None"),
        ({"seed": 1.5}, "seed=1.5; use a whole number"),
        ({"warmup": 1.5}, "warmup=1.5; use a whole number, 0 or more"),
        ({"patience": 1.5}, "patience=1.5; use"),
        ({"shuffle": "no"}, "shuffle='no'; use True or False"),
        ({"clip": "1"}, "clip='1'; use a number above 0, or None"),
        ({"clip": float("nan")}, "clip=nan; use"),
        ({"ema": "0.9"}, "ema='0.9'; use a number between 0 and 1, or None"),
        ({"min_delta": float("nan")}, "min_delta=nan; use a number that is finite"),
        ({"min_delta": None}, "min_delta=None; use"),
        ({"schedule": "cosine"}, "schedule='cosine'; use Cosine()"),
        ({"schedule": Cosine}, "use Cosine()"),
        ({"phases": [1, 2]}, "phases=[1, 2]; use a tuple of phases"),
        ({"phases": Phase(2)}, "use a tuple of phases"),
        ({"checkpoints": "folder"}, "checkpoints='folder'; use Checkpoints(folder) or None"),
        (
            {"activation_checkpointing": "0"},
            "activation_checkpointing='0'; use True, False, \"auto\" or a tuple of names: ('0',)",
        ),
        ({"activation_checkpointing": 3}, "activation_checkpointing=3; use"),
        ({"monitor": 3}, "monitor=3; use a score's name"),
        ({"higher_is_better": "yes"}, "higher_is_better='yes'; use True, False or None"),
        ({"loss_weights": [1.0]}, "loss_weights=[1.0]; use a dict"),
        ({"loss_weights": {"a": "1"}}, "loss_weights has 'a': '1'; use a dict"),
        ({"loss_weights": {"a": float("inf")}}, "loss_weights has 'a': inf; use a dict"),
    ],
)
def test_rejects_recipe_values_of_the_wrong_type(values, words):
    with pytest.raises(BadRecipe, match=re.escape(words)):
        Recipe(**{"batch_size": 8, **values})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Phase("3"), "Phase(epochs='3'); use a whole number, 1 or more"),
        (lambda: Phase(3, frozen="body"), "Phase(frozen='body'); use a tuple of names: ('body',)"),
        (lambda: Phase(3, frozen=(1,)), "Phase(frozen=(1,)); use a tuple of names"),
        (lambda: Phase(3, learning_rate=float("nan")), "Phase(learning_rate=nan); use a number 0 or more, or None"),
        (lambda: Phase(3, schedule="cosine"), "Phase(schedule='cosine'); use Cosine()"),
        (lambda: Phase(3, fresh_optimizer="no"), "Phase(fresh_optimizer='no'); use True or False"),
        (lambda: Phase(3, frozen_statistics=1), "Phase(frozen_statistics=1); use True or False"),
        (lambda: Checkpoints(3), "Checkpoints(folder=3); use a path"),
        (lambda: Checkpoints("runs", every="2"), "Checkpoints(every='2'); use a whole number, 1 or more, or None"),
        (lambda: Checkpoints("runs", steps=1.5), "Checkpoints(steps=1.5); use"),
        (lambda: Checkpoints("runs", best="yes"), "Checkpoints(best='yes'); use True, False or how many"),
    ],
)
def test_rejects_phase_and_checkpoint_values_of_the_wrong_type(make, words):
    with pytest.raises(BadRecipe, match=re.escape(words)):
        make()


def test_converts_numpy_numbers_and_lists():
    recipe = Recipe(np.int64(8), clip=np.float32(1.0), phases=[Phase(np.int64(2), frozen=["body"])], ema=None)
    assert (type(recipe.batch_size), type(recipe.clip), recipe.ema) == (int, float, None)
    assert recipe.phases == (Phase(2, frozen=("body",)),)
    assert Recipe(8, activation_checkpointing=["body"]).activation_checkpointing == ("body",)
    assert Recipe(8, checkpoints=Checkpoints(Path("runs"))).higher_is_better is None
