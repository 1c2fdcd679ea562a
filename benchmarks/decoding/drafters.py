"""Others' drafting, to be given to the engine in place of a `Drafter`. Both see the prompt and the output so far."""

from collections.abc import Sequence
from importlib import import_module
from itertools import islice, takewhile
from typing import Any

import numpy as np

from refdraft.decoder.draft import Draft, Origin
from refdraft.decoder.peers.lookup import PromptLookup
from refdraft.decoder.replay import Trace

ARCTIC_HINT = (
    "arctic-inference is missing: pip install nanobind==2.9.2 && "
    "pip install --no-build-isolation --no-deps arctic-inference==0.3.0 "
    "(in an activated environment: it compiles C++ with CMake); or leave suffix_decoding out of --methods"
)
_DEPTH = 24  # of the suffix tree, and draft tokens at most: what vLLM sets where nothing else is said


class LookupDrafter:
    """transformers' `PromptLookupCandidateGenerator` as it comes: n-grams of 2, then 1, first match, 10 tokens.

    Args:
        prompt: token ids.
        eos_ids: a draft ends before the first of these.
    """

    def __init__(self, prompt: Sequence[int], eos_ids: frozenset[int]) -> None:
        self._peer = PromptLookup(Trace(prompt, (), ()), budget=10, longest=2, shortest=1)
        self._eos_ids = eos_ids

    def propose(self, limit: int) -> Draft:
        """See `Drafter`."""
        found = (token for _, token in self._peer.draft(()).nodes)
        return _chain(list(islice(takewhile(lambda token: token not in self._eos_ids, found), limit)))

    def observe(self, tokens: Sequence[int], logits: object = None) -> None:
        """See `Drafter`."""
        self._peer.observe(tokens)


class SuffixDrafter:
    """arctic-inference's `SuffixDecodingCache`, used as vLLM uses it, with its settings.

    The draft is the path of the highest score, no longer than the match it hangs from, of tokens whose share is 0.1 or
    more. Former answers are drafted from too: those stay in the cache.

    Args:
        cache: of all requests, which come one at a time.
        prompt: token ids.
    """

    def __init__(self, cache: Any, prompt: Sequence[int]) -> None:
        self._cache, self._id = cache, len(cache.cached_requests)
        for former in list(cache.active_requests):
            cache.stop_request(former)
        cache.start_request(self._id, np.array(prompt, np.int32))
        self._context = list(prompt)

    @staticmethod
    def new_cache() -> Any:
        """A cache without any answers.

        Raises:
            ImportError: arctic-inference is not installed; see `ARCTIC_HINT`.
        """
        module = import_module("arctic_inference.suffix_decoding")
        return module.SuffixDecodingCache(max_tree_depth=_DEPTH, max_cached_requests=10_000)

    def propose(self, limit: int) -> Draft:
        """See `Drafter`."""
        pattern = np.array(self._context[-_DEPTH:], np.int32)
        found = self._cache.speculate(
            self._id, pattern, max_spec_tokens=min(limit, _DEPTH), max_spec_factor=1.0, min_token_prob=0.1
        )
        return _chain(found.token_ids)

    def observe(self, tokens: Sequence[int], logits: object = None) -> None:
        """See `Drafter`."""
        self._context.extend(tokens)
        self._cache.add_active_response(self._id, np.array(tokens, np.int32))


def _chain(tokens: Sequence[int]) -> Draft:
    """A draft that is held to be certain, so that all of it is verified."""
    return Draft.chain(tokens, [Origin("prompt", 0, 0)] * len(tokens), [1.0] * len(tokens))
