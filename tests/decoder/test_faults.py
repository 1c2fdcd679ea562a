"""What fails, a drafter, a stop rule, a constraint or the numbers, harms nobody else."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from refdraft.decoder.draft import Draft, Origin
from refdraft.decoder.engine import EngineConfig
from refdraft.decoder.request import DecodeRequest
from refdraft.errors import InvalidRequestError
from tests.decoder.conftest import Decoder, Load
from tests.decoder.drafts import PROMPT, VOCABULARY, TreeDrafter, perfect


class FaultyDrafter(TreeDrafter):
    def __init__(self, truth: Sequence[int], method: str, calls: int) -> None:
        super().__init__(truth, 0)
        self._method, self._left = method, calls

    def _count(self, method: str) -> None:
        self._left -= method == self._method
        if self._left < 0:
            raise RuntimeError("a drafter's bug")

    def propose(self, limit: int) -> Draft:
        self._count("propose")
        return super().propose(limit)

    def observe(self, tokens: Sequence[int], logits: object = None) -> None:
        self._count("observe")
        super().observe(tokens)


@pytest.mark.parametrize("calls", [0, 1, 3])
@pytest.mark.parametrize("method", ["propose", "observe"])
def test_a_drafters_fault_costs_speed_only(decoder: Decoder, method: str, calls: int) -> None:
    request = DecodeRequest(PROMPT, 40)
    plain = decoder.plain(request)
    healthy = DecodeRequest((9, 8, 7), 40)
    results = decoder.run([request, healthy], drafters={0: FaultyDrafter(plain.ids, method, calls)})
    assert [result.output for result in results] == [plain.output, decoder.plain(healthy).output]
    assert [result.statistics and result.statistics.drafter_faults for result in results] == [1, 0]


def test_sources_that_cannot_be_read_turn_drafting_off(decoder: Decoder) -> None:
    request = DecodeRequest(PROMPT, 20)
    broken: Any = [None]
    result = decoder.run([replace(request, documents={"references": broken})])[0]
    assert result.output == decoder.plain(request).output
    assert result.statistics is not None
    assert result.statistics.drafted == {}


def test_a_stop_rules_fault_fails_its_own_request(decoder: Decoder) -> None:
    def stop(token: int) -> bool:
        raise LookupError("a stop rule's bug")

    healthy = DecodeRequest(PROMPT, 20)
    results = decoder.run([DecodeRequest((4, 5), 20, stop=stop), healthy, healthy])
    assert isinstance(results[0].error, LookupError)
    assert [result.output for result in results[1:]] == [decoder.plain(healthy).output] * 2


def test_numbers_that_are_none_fail_their_own_request_and_leave_no_trace(load_tiny: Load) -> None:
    """A token that the model turns to NaN: half precision overflows like that."""
    target = load_tiny(slots=2)
    with torch.no_grad():
        embeddings: Any = target.model.get_input_embeddings()
        embeddings.weight[511] = float("nan")
    decoder = Decoder(target, EngineConfig(max_draft_tokens=32, prefill_chunk=16))
    healthy = DecodeRequest(PROMPT, 40)
    expected = decoder.plain(healthy).output
    poisoned = DecodeRequest((9,) * 70 + (511,), 20)
    results = decoder.run([poisoned, DecodeRequest((PROMPT * 20)[:80], 16), healthy])
    assert isinstance(results[0].error, FloatingPointError)
    assert results[2].output == expected


class DeadEnd:
    """Allows everything, then nothing: a constraint that an accepted span runs into."""

    def __init__(self, tokens: int) -> None:
        self._left = tokens

    def allowed(self) -> NDArray[np.bool_]:
        return np.full(VOCABULARY, self._left > 0)

    def accepts(self, tokens: Sequence[int]) -> int:
        return len(tokens)  # wrongly, as a constraint with a bug would

    def advance(self, token: int) -> None:
        self._left -= 1


def test_what_fails_within_a_span_fails_behind_the_tokens_before_it(decoder: Decoder) -> None:
    request = perfect(decoder, DecodeRequest(PROMPT, 30))
    for tokens in (1, 2, 5, 12):
        plain = decoder.plain(replace(request, constraint=DeadEnd(tokens)))
        drafted = decoder.run([replace(request, constraint=DeadEnd(tokens))])[0]
        for result in (plain, drafted):
            assert len(result.ids) == tokens
            assert isinstance(result.error, InvalidRequestError)
        assert plain.ids == drafted.ids


ROOT_ORIGIN = Origin("stub", 0, 0)


def draft_of(tokens: Sequence[Any], **changes: Any) -> Any:
    return replace(Draft.chain(tokens, [ROOT_ORIGIN] * len(tokens), [1.0] * len(tokens)), **changes)


@pytest.mark.parametrize(
    ("proposal", "faults"),
    [
        (draft_of(range(5, 5 + 10_000)), 0),
        (draft_of([VOCABULARY, -1, 2**70]), 0),
        (draft_of([7, -3, 8]), 0),
        (draft_of([7, "eight"]), 1),
        (draft_of([7, 8], survivals=(float("nan"), 0.5)), 1),
        (draft_of([7, 8], survivals=(3.0, "much")), 1),
        (draft_of([7, 8], origins=(None, None)), 1),
        (None, 1),
        ([7, 8], 1),
    ],
)
def test_a_drafter_that_breaks_its_word_costs_speed_only(decoder: Decoder, proposal: Any, faults: int) -> None:
    class Liar:
        def propose(self, limit: int) -> Any:
            return proposal

        def observe(self, tokens: Sequence[int], logits: object = None) -> None:
            pass

    request, healthy = DecodeRequest(PROMPT, 20), DecodeRequest((9, 8, 7), 20)
    results = decoder.run([request, healthy], drafters={0: Liar()})
    assert [result.output for result in results] == [decoder.plain(r).output for r in (request, healthy)]
    assert results[0].statistics is not None
    assert results[0].statistics.drafter_faults == faults
