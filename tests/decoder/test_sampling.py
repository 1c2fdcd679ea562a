"""choose() against a plain float64 implementation, and its generator against the published one."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from refdraft.decoder.sampling import SamplingOptions, choose, uniform

_WORD = 2**64 - 1


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> list[int]:
    """Philox4x64-10 as Salmon et al. 2011 write it."""
    c, k = list(counter), list(key)
    for _ in range(10):
        first, second = 0xD2E7470EE14C6C93 * c[0], 0xCA5A826395121157 * c[2]
        c = [(second >> 64) ^ c[1] ^ k[0], second & _WORD, (first >> 64) ^ c[3] ^ k[1], first & _WORD]
        k = [(k[0] + 0x9E3779B97F4A7C15) & _WORD, (k[1] + 0xBB67AE8584CAA73B) & _WORD]
    return c


def plain_choose(logits: NDArray[np.float32], options: SamplingOptions, position: int) -> int:
    """Temperature, top_k, top_p, min_p and the inverse CDF in Python's own floats, one token at a time."""
    values = [float(logit) for logit in logits]
    ranked = sorted(range(len(values)), key=lambda token: (-values[token], token))
    if options.temperature < 1e-5:
        return ranked[0]
    kept = ranked[: options.top_k or None]
    weight = {token: math.exp((values[token] - values[ranked[0]]) / options.temperature) for token in kept}
    if options.top_p < 1.0:
        wanted, total, nucleus = options.top_p * math.fsum(weight.values()), 0.0, []
        for token in kept:
            nucleus.append(token)
            total += weight[token]
            if total >= wanted:
                break
        kept = nucleus
    kept = [token for token in kept if weight[token] >= options.min_p]
    threshold = uniform(options.seed, position) * math.fsum(weight[token] for token in kept)
    total = 0.0
    for token in sorted(kept):
        total += weight[token]
        if total > threshold:
            return token
    raise AssertionError("the threshold is below the sum")


def test_the_reference_generator_meets_its_published_vectors() -> None:
    assert philox((0, 0, 0, 0), (0, 0))[0] == 0x16554D9ECA36314C
    counter = (0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89)
    assert philox(counter, (0x452821E638D01377, 0xBE5466CF34E90C6C))[0] == 0xA528F45403E61D95


@settings(deadline=None, derandomize=True)
@given(st.integers(0, 2**64 - 1), st.integers(0, 2**40))
def test_uniform_is_philox_keyed_by_seed_and_position(seed: int, position: int) -> None:
    word = philox((position + 1, 0, 0, 0), (seed, 0))[0]
    assert uniform(seed, position) == (word >> 11) / 2**53
    assert 0.0 <= uniform(seed, position) < 1.0


options = st.builds(
    SamplingOptions,
    temperature=st.sampled_from([0.0, 9e-6, 0.05, 0.7, 1.0, 1.9]),
    top_k=st.sampled_from([0, 1, 2, 5, 40, 3000]),
    top_p=st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.03, 0.4, 1.0]),
    seed=st.integers(0, 2**64 - 1),
)


@settings(deadline=None, max_examples=300, derandomize=True)
@given(st.integers(0, 2**32), st.integers(1, 60), options, st.integers(0, 5000), st.booleans())
def test_choose_equals_the_plain_implementation(
    noise: int, size: int, options: SamplingOptions, position: int, coarse: bool
) -> None:
    logits = np.random.default_rng(noise).normal(0, 3, size).astype(np.float32)
    if coarse:  # equal logits everywhere, among them at the borders of top_k and of the nucleus
        logits = np.round(logits)
    assert choose(logits, options, position) == plain_choose(logits, options, position)


@pytest.mark.parametrize("scale", [0.1, 3.0])
@pytest.mark.parametrize("coarse", [True, False])
def test_choose_equals_the_plain_implementation_on_a_real_vocabulary(scale: float, coarse: bool) -> None:
    """Large enough for the shortlist of the nucleus to matter, flat enough for it not to suffice."""
    rng = np.random.default_rng(0)
    for position in range(12):
        logits = rng.normal(0, scale, 6000).astype(np.float32)
        logits = np.round(logits, 1 if scale < 1 else 0) if coarse else logits
        for top_p in (0.3, 0.95):
            options = SamplingOptions(temperature=0.9, top_p=top_p, seed=5)
            assert choose(logits, options, position) == plain_choose(logits, options, position)


def test_among_equals_the_lowest_id_is_taken() -> None:
    level = np.zeros(8, np.float32)
    assert choose(level, SamplingOptions(), 3) == 0
    assert choose(level, SamplingOptions(temperature=1.0, top_k=1), 3) == 0
    assert choose(level, SamplingOptions(temperature=1.0, top_p=0.1), 3) == 0
    seen = {choose(level, SamplingOptions(temperature=1.0, top_k=3), position) for position in range(200)}
    assert seen == {0, 1, 2}


@settings(deadline=None, max_examples=100, derandomize=True)
@given(st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=30), st.integers(0, 100))
def test_a_temperature_near_zero_is_greedy(values: list[float], position: int) -> None:
    logits = np.array(values, np.float32)
    best = choose(logits, SamplingOptions(), position)
    for temperature in (5e-324, 1e-300, 1e-30, 9.9e-6):
        assert choose(logits, SamplingOptions(temperature=temperature, seed=1), position) == best


def test_a_temperature_without_bound_is_level() -> None:
    logits = np.array([-80.0, 0.0, 80.0], np.float32)
    options = SamplingOptions(temperature=1e30)
    assert {choose(logits, options, position) for position in range(100)} == {0, 1, 2}


def test_tokens_with_negative_infinity_are_never_drawn() -> None:
    logits = np.full(50, -np.inf, np.float32)
    logits[[7, 30]] = -1000.0
    for top_p, min_p in ((1.0, 0.0), (0.6, 0.0), (1.0, 0.5)):
        options = SamplingOptions(temperature=2.0, top_p=top_p, min_p=min_p, top_k=10)
        assert {choose(logits, options, position) for position in range(100)} == {7, 30}


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (4, 1.0), (0, 0.8), (5, 0.7)])
def test_draws_follow_the_distribution(top_k: int, top_p: float) -> None:
    """Chi-square over positions of one seed: what one request sees."""
    logits = np.array([1.0, 0.2, -0.5, 2.0, 1.5, 0.0, -3.0, 0.9], np.float32)
    options = SamplingOptions(temperature=1.3, top_k=top_k, top_p=top_p, seed=11)
    draws = 6000
    counts = np.bincount([choose(logits, options, position) for position in range(draws)], minlength=8)
    weights = np.exp(logits.astype(np.float64) / 1.3)
    order = np.argsort(-weights)
    kept = order[: top_k or 8]
    reached = np.cumsum(weights[kept]) / weights[kept].sum()
    kept = kept[: int(np.searchsorted(reached, top_p - 1e-12)) + 1]
    expected = draws * weights[kept] / weights[kept].sum()
    assert counts[np.setdiff1d(np.arange(8), kept)].sum() == 0
    chi_square = float(((counts[kept] - expected) ** 2 / expected).sum())
    assert chi_square < 24.3  # the 99.9 % point at 7 degrees of freedom, more than enough for fewer


def test_seed_and_position_both_decide() -> None:
    level = np.zeros(512, np.float32)
    draws = {
        (seed, position): choose(level, SamplingOptions(temperature=1.0, seed=seed), position)
        for seed in range(20)
        for position in range(20)
    }
    assert len(set(draws.values())) > 250
    assert any(draws[seed, position] != draws[position, seed] for seed in range(20) for position in range(seed))
