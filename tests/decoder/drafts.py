"""Stand-ins for a drafter, and references that make a real one draft perfectly."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from refdraft.decoder.draft import Draft, Origin
from refdraft.decoder.request import DecodeRequest
from tests.decoder.conftest import Decoder

VOCABULARY = 512
PROMPT = (50, 61, 72, 83, 50, 61)


class TreeDrafter:
    """Proposes random trees, or chains, in which the true continuation hides among noise."""

    def __init__(self, truth: Sequence[int], seed: int, *, chains: bool = False) -> None:
        self._truth, self._committed, self._chains = truth, 0, chains
        self._rng = np.random.default_rng(seed)

    def propose(self, limit: int) -> Draft:
        rng = self._rng
        parents: list[int] = []
        tokens: list[int] = []
        depth_on_truth = {-1: 0}  # nodes whose whole path is true, and how deep they lie
        for node in range(int(rng.integers(0, limit + 1))):
            deepest = max(depth_on_truth, key=depth_on_truth.__getitem__)
            parent = deepest if rng.random() < 0.6 else int(rng.integers(-1, node))
            parent = node - 1 if self._chains else parent
            token = int(rng.integers(0, VOCABULARY))
            if parent in depth_on_truth and rng.random() < 0.8:
                at = self._committed + depth_on_truth[parent]
                if at < len(self._truth):
                    token = self._truth[at]
                    depth_on_truth[node] = depth_on_truth[parent] + 1
            parents.append(parent)
            tokens.append(token)
        origins = (Origin("tree", 0, 0),) * len(tokens)
        return Draft(tuple(tokens), tuple(parents), origins, (1.0,) * len(tokens))

    def observe(self, tokens: Sequence[int], logits: object = None) -> None:
        self._committed += len(tokens)


def perfect(decoder: Decoder, request: DecodeRequest) -> DecodeRequest:
    """The request with its own endless output as a reference."""
    room = decoder.target.context_limit - len(request.prompt)
    endless = decoder.plain(DecodeRequest(request.prompt, room, sampling=request.sampling))
    return replace(request, documents={"references": [[*request.prompt, *endless.ids]]})
