"""Every layer and recipe of the documentation learns what its Euclidean twin learns.

`HYPOTHESIS_PROFILE=nightly` trains all seeds at both rates, and the twins, as benchmarks/studies/lorentz.md shows; and
attention of the documents, and with positions that start small, which takes as long as all the others.
"""

import re
from functools import cache
from itertools import product

import pytest
from nightly import NIGHTLY
from recipes import PAGES, RATES, RECIPES, SEEDS, SOLVED, Recipe, train

import lorentz.nn as lnn


def is_run(run: tuple[str, int, float]) -> bool:
    """README's attention is trained with every seed at both rates; the docs' is the same with other heads."""
    if run[0] in ("attention of docs", "attention, small positions"):
        return NIGHTLY and run[1:] == (SEEDS[0], RATES[0])
    return True


GRID = (SEEDS, RATES) if NIGHTLY else (SEEDS[:1], RATES[:1])
RUNS = [run for run in product(RECIPES, *GRID) if is_run(run)]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: "-".join(map(str, run)))
def test_learns(run: tuple[str, int, float]) -> None:
    name, seed, rate = run
    recipe = RECIPES[name]
    score, _ = train(recipe, recipe.ours, seed, rate)
    assert score >= SOLVED
    if NIGHTLY and seed == SEEDS[0]:
        assert score_of_twin(recipe._replace(task="", ours=recipe.twin), rate) >= 0.75, "the task is unfair"


@cache
def score_of_twin(recipe: Recipe, rate: float) -> float:
    """Recipes of one task share their twin."""
    return train(recipe, recipe.twin, SEEDS[0], rate)[0]


def test_every_layer_has_a_recipe() -> None:
    text = (PAGES / "tests" / "lorentz" / "recipes.py").read_text(encoding="utf-8")
    # Curvature and the maps are in the attention of both pages, ContrastiveLosses is a record.
    layers = set(lnn.__all__) - {"Curvature", "ContrastiveLosses", "ExpMap0", "LogMap0", "LorentzMultiheadAttention"}
    assert {name for name in layers if not re.search(rf"lnn\.{name}\(", text)} == set()
