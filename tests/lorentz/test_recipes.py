"""Layers and the attention of the README learn what their Euclidean twins learn.

`HYPOTHESIS_PROFILE=nightly` trains all seeds at both rates, and the twins, as the table of docs/lorentz.md does.
"""

from functools import cache

import pytest
from nightly import NIGHTLY
from recipes import RATES, RECIPES, SEEDS, SOLVED, Recipe, train


@pytest.mark.parametrize("rate", RATES if NIGHTLY else RATES[:1])
@pytest.mark.parametrize("seed", SEEDS if NIGHTLY else SEEDS[:1])
@pytest.mark.parametrize("name", RECIPES)
def test_learns(name: str, seed: int, rate: float) -> None:
    recipe = RECIPES[name]
    score, _ = train(recipe, recipe.ours, seed, rate)
    assert score >= SOLVED
    if NIGHTLY and seed == SEEDS[0]:
        assert score_of_twin(recipe._replace(task="", ours=recipe.twin), rate) >= 0.75, "the task is unfair"


@cache
def score_of_twin(recipe: Recipe, rate: float) -> float:
    """Recipes of one task share their twin."""
    return train(recipe, recipe.twin, SEEDS[0], rate)[0]
