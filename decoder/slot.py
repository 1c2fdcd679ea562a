"""One request's place in the batch, and the family of samples that it may belong to."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from refdraft.decoder.drafter import Drafter
from refdraft.decoder.request import Commit, DecodeRequest, DecodeStatistics, FinishReason
from refdraft.decoder.sampler import Sampler
from refdraft.decoder.stake import Stake

Listener = Callable[[Commit | Exception], None]


@dataclass(slots=True)
class Family:
    """The samples of one prompt, which is prefilled once, for the first of them.

    Attributes:
        waiting: samples that have no row of the cache yet.
        logits: float32 [vocabulary], the target's behind the prompt; None until it is prefilled.
    """

    waiting: deque["Slot"] = field(default_factory=deque)
    logits: NDArray[np.float32] | None = None

    def next(self) -> "Slot | None":
        """Take out the next sample that is still wanted."""
        while self.waiting:
            if not (sample := self.waiting.popleft()).cancelled:
                return sample
        return None


@dataclass(slots=True)
class Slot:
    """One request's place in the batch and its row of the KV cache."""

    request: DecodeRequest
    listener: Listener
    drafter: Drafter | None
    sampler: Sampler
    family: Family = field(default_factory=Family)
    cached: int = 0  # tokens of the context whose keys and values are in the cache
    token: int | None = None  # the newest committed token, not in the cache yet; None while prefilling
    generated: int = 0
    cancelled: bool = False
    statistics: DecodeStatistics = field(default_factory=DecodeStatistics)
    stake: Stake = field(default_factory=Stake)

    @property
    def length(self) -> int:
        """Tokens of the context."""
        return len(self.request.prompt) + self.generated

    def draft_room(self, context_limit: int) -> int:
        """Draft tokens that could all be committed before a length limit ends the output."""
        left = min(self.request.max_tokens - self.generated, context_limit - self.length)
        return min(self.request.max_draft_tokens, left - 1)

    def finish_reason(self, token: int, context_limit: int) -> FinishReason | None:
        """Why the output ends with `token`, the newest one; None if it goes on."""
        request = self.request
        if token in request.eos_ids:
            return "stop"
        if token in request.stop_ids:
            return "stop_token"
        if request.stop and request.stop(token):
            return "stop_string"
        if self.generated == request.max_tokens:
            return "length"
        return "context_limit" if self.length == context_limit else None
