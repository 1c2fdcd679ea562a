"""A draft model: a small causal language model that guesses what the target writes next (Leviathan et al. 2023).

Its guess is one more source: it shares a tree with what the texts hold, and is believed as far as it has held.
"""

import weakref
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from refdraft.decoder.batch import Batch
from refdraft.decoder.pool import GUESSES, Int
from refdraft.decoder.runners import STRONGEST, WEAKEST
from refdraft.decoder.target import Target

_CHUNK = 256  # tokens run at once while it reads
_LEAST = 0.3  # it guesses no further than behind a token that it holds to be less likely
_STEPS = 6.0  # buckets of evidence a unit of the logarithm of the likelihood


class DraftModel:
    """A draft model with room for some requests at once; used from the engine's thread, opened in any.

    Args:
        model: the model, of the target's tokenizer.
    """

    def __init__(self, model: Target) -> None:
        self.model = model
        self._free = list(range(model.slots))

    def open(self, prompt: Sequence[int]) -> "Guesser | None":
        """Take a row for one request, until what is returned is forgotten; None where all are taken."""
        try:
            slot = self._free.pop()
        except IndexError:
            return None
        guesser = Guesser(self.model, slot, prompt)
        weakref.finalize(guesser, self._free.append, slot)
        return guesser


class Guesser:
    """Follows one context and guesses how it goes on."""

    def __init__(self, model: Target, slot: int, prompt: Sequence[int]) -> None:
        self._model, self._slot = model, slot
        self._unread = list(prompt)
        self._read = 0  # tokens whose keys and values are in the cache

    def observe(self, tokens: Sequence[int]) -> None:
        """Note the tokens that were committed."""
        self._unread += tokens

    def guess(self) -> tuple[Int, NDArray[np.uint8]]:
        """The likeliest next tokens one after the other, GUESSES at most, and how likely each looked.

        Returns:
            int32 [tokens] and uint8 [tokens], STRONGEST to WEAKEST.
        """
        ids: list[int] = []
        looks: list[int] = []
        if self._read + len(self._unread) + GUESSES > self._model.context_limit:
            return np.array(ids, np.int32), np.array(looks, np.uint8)
        while len(self._unread) > _CHUNK:
            self._run(self._unread[:_CHUNK], self._read)
            self._read, self._unread = self._read + _CHUNK, self._unread[_CHUNK:]
        logits = self._run(self._unread, self._read)
        self._read, self._unread = self._read + len(self._unread), []
        while len(ids) < GUESSES:
            token = int(logits.argmax())
            likelihood = 1.0 / float(np.exp(logits - logits[token]).sum())
            if likelihood < _LEAST:
                break
            ids.append(token)
            looks.append(min(STRONGEST + int(-np.log(likelihood) * _STEPS), WEAKEST))
            if len(ids) < GUESSES:  # a guess that fails is written over by what was committed instead
                logits = self._run([token], self._read + len(ids) - 1)
        return np.array(ids, np.int32), np.array(looks, np.uint8)

    def _run(self, tokens: Sequence[int], start: int) -> NDArray[np.float32]:
        """Run tokens from a place on; the logits behind the last, float32 [vocabulary]."""
        batch = Batch.prefill(
            self._slot,
            start,
            tokens,
            width=len(tokens),
            cells=start + len(tokens),
            last_position=self._model.context_limit - 1,
        )
        logits: NDArray[np.float32] = self._model.run(batch, last_only=len(tokens) - 1).cpu().numpy()[0, 0]
        return logits
