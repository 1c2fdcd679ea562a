"""Processors against a plain specification, one token id at a time."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refdraft.decoder.processors import Processors
from refdraft.decoder.sampling import SamplingOptions

VOCABULARY = 8
tokens = st.integers(0, VOCABULARY - 1)


def specified(
    logit: float, token: int, prompt: Sequence[int], output: Sequence[int], options: SamplingOptions, late: bool
) -> float:
    """The score of one token behind `prompt` and `output`; `late`: it may not come yet."""
    context = [*prompt, *output]
    score = logit
    if token in context:
        score = score / options.repetition_penalty if score > 0 else score * options.repetition_penalty
    if token in output:
        score -= output.count(token) * options.frequency_penalty + options.presence_penalty
    score += options.logit_bias.get(token, 0.0)
    completes = any(
        word[-1] == token and [*context, token][-len(word) :] == list(word) for word in map(list, options.bad_words)
    )
    barred = options.allowed_ids is not None and token not in options.allowed_ids
    return -math.inf if late or completes or barred else score


options = st.builds(
    SamplingOptions,
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.4, -1.0]),
    presence_penalty=st.sampled_from([0.0, 0.7, -2.0]),
    logit_bias=st.dictionaries(tokens, st.floats(-5, 5), max_size=3),
    bad_words=st.lists(st.lists(tokens, min_size=1, max_size=3), max_size=4),
    allowed_ids=st.none() | st.frozensets(tokens),
)


@settings(deadline=None, max_examples=300, derandomize=True)
@given(
    st.lists(tokens, min_size=1, max_size=6),
    st.lists(tokens, max_size=8),
    options,
    st.frozensets(st.integers(0, VOCABULARY + 1), max_size=3),
    st.integers(0, 6),
    st.integers(0, 2**32),
)
def test_each_score_is_what_the_tokens_own_prefix_makes_of_it(
    prompt: list[int],
    output: list[int],
    options: SamplingOptions,
    late_ids: frozenset[int],
    min_tokens: int,
    noise: int,
) -> None:
    processors = Processors(prompt, options, vocabulary_size=VOCABULARY, late_ids=late_ids, min_tokens=min_tokens)
    logits = np.random.default_rng(noise).normal(0, 3, VOCABULARY).astype(np.float32)
    logits[3] = -np.inf
    untouched = logits.copy()
    for length in range(len(output) + 1):
        scores = processors(logits)
        late = length < min_tokens
        expected = [
            specified(float(logit), token, prompt, output[:length], options, late and token in late_ids)
            for token, logit in enumerate(logits)
        ]
        np.testing.assert_allclose(scores, expected, rtol=1e-12)
        if length < len(output):
            processors.advance(output[length])
    np.testing.assert_array_equal(logits, untouched)


@pytest.mark.parametrize("prompt", [(1,), (1, 2, 3)])
def test_the_defaults_leave_the_targets_own_floats(prompt: tuple[int, ...]) -> None:
    processors = Processors(prompt, SamplingOptions(), vocabulary_size=3)
    logits = np.array([0.1, 0.2, 0.3], np.float32)
    assert processors(logits) is logits
