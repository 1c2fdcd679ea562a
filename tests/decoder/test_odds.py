from itertools import pairwise

import pytest

from refdraft.decoder.odds import AcceptanceRates, SurvivalOdds


def test_the_chance_falls_along_a_span_and_rises_with_the_match() -> None:
    odds = SurvivalOdds(AcceptanceRates())
    chances = odds.survival("references", 1, 40)
    assert all(0 < later < earlier < 1 for earlier, later in pairwise(chances))
    firsts = [odds.survival("references", length, 1)[0] for length in range(1, 40)]
    assert firsts == sorted(firsts)
    assert firsts[0] < firsts[-1]
    assert odds.survival("references", 3, 0) == []


@pytest.mark.parametrize("holds", [True, False])
def test_a_request_finds_out_whether_it_copies(holds: bool) -> None:
    odds = SurvivalOdds(AcceptanceRates())
    before, other = odds.survival("prompt", 4, 1)[0], odds.survival("output", 2, 1)[0]
    for _ in range(30):
        odds.observe("prompt", 4, [1], [1 if holds else 2])
    after, other_after = odds.survival("prompt", 4, 1)[0], odds.survival("output", 2, 1)[0]
    assert after > 0.8 if holds else after < 0.2
    assert (after > before) == holds
    assert (other_after > other) == holds, "what a request is like shows in all its sources"


def test_old_observations_fade() -> None:
    rates = AcceptanceRates()
    for held in [True] * 1000 + [False] * 1000:
        SurvivalOdds(rates).observe("prompt", 4, [1], [1 if held else 2])
    assert SurvivalOdds(rates).survival("prompt", 4, 1)[0] < 0.1


def test_nothing_is_learned_of_tokens_behind_the_first_that_failed() -> None:
    rates = AcceptanceRates()
    for _ in range(200):
        SurvivalOdds(rates).observe("prompt", 3, [1, 2, 3], [1, 9, 3])
    first, second, third = SurvivalOdds(rates).survival("prompt", 3, 3)
    untaught = SurvivalOdds(AcceptanceRates()).survival("prompt", 3, 3)
    assert first > 0.9
    assert second < 0.1
    assert third / second == pytest.approx(untaught[2] / untaught[1])


def test_a_request_teaches_the_requests_after_it_about_that_source_alone() -> None:
    rates = AcceptanceRates()
    other = SurvivalOdds(rates).survival("prompt", 2, 1)
    for _ in range(300):
        SurvivalOdds(rates).observe("references", 2, [1], [2])
    assert SurvivalOdds(rates).survival("references", 2, 1)[0] < 0.1
    assert SurvivalOdds(rates).survival("prompt", 2, 1) == other
