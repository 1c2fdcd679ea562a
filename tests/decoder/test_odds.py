from itertools import pairwise

import pytest

from refdraft.decoder.odds import SurvivalOdds


def test_the_chance_falls_along_a_span_and_rises_with_the_match() -> None:
    odds = SurvivalOdds()
    chances = odds.survival("references", 1, 40)
    assert all(0 < later < earlier < 1 for earlier, later in pairwise(chances))
    firsts = [odds.survival("references", length, 1)[0] for length in range(1, 40)]
    assert firsts == sorted(firsts)
    assert firsts[0] < firsts[-1]
    assert odds.survival("references", 3, 0) == []


@pytest.mark.parametrize("holds", [True, False])
def test_what_is_observed_moves_the_odds_of_that_source_alone(holds: bool) -> None:
    odds = SurvivalOdds()
    before, other = odds.survival("prompt", 4, 1)[0], odds.survival("output", 4, 1)[0]
    for _ in range(100):
        odds.observe("prompt", 4, [1], [1 if holds else 2])
    after = odds.survival("prompt", 4, 1)[0]
    assert after > 0.95 if holds else after < 0.05
    assert (after > before) == holds
    assert odds.survival("output", 4, 1)[0] == other


def test_old_observations_fade() -> None:
    odds = SurvivalOdds()
    for held in [True] * 1000 + [False] * 100:
        odds.observe("prompt", 4, [1], [1 if held else 2])
    assert odds.survival("prompt", 4, 1)[0] < 0.2


def test_nothing_is_learned_of_tokens_behind_the_first_that_failed() -> None:
    odds = SurvivalOdds()
    later = odds.survival("prompt", 3, 3)[2] / odds.survival("prompt", 3, 2)[1]
    for _ in range(50):
        odds.observe("prompt", 3, [1, 2, 3], [1, 9, 3])
    chances = odds.survival("prompt", 3, 3)
    assert chances[0] > 0.9
    assert chances[1] < 0.1
    assert chances[2] / chances[1] == pytest.approx(later)


def test_a_request_teaches_the_requests_after_it() -> None:
    shared = SurvivalOdds()
    for _ in range(100):
        SurvivalOdds(shared).observe("references", 2, [1], [2])
    assert SurvivalOdds(shared).survival("references", 2, 1)[0] < 0.1
