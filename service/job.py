"""A request, ready for the engine: one job, with one `DecodeRequest` a sample."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from refdraft.decoder.corpus import Corpus
from refdraft.decoder.drafter import DrafterOptions
from refdraft.decoder.request import DecodeRequest
from refdraft.decoder.sampling import SamplingOptions
from refdraft.errors import InvalidRequestError
from refdraft.retriever.tokenizer import Tokenizer
from refdraft.service.attribution import Document, Documents
from refdraft.service.structure import Structures
from refdraft.service.text import StopStrings
from refdraft.service.types import GenerateRequest, Passage, Sampling, SourceName
from refdraft.service.validation import MAX_SEED


@dataclass(frozen=True, slots=True)
class Sample:
    """One output to decode.

    Attributes:
        number: which of the request's samples it is.
        decode: what the engine is asked for.
        stops: what `decode.stop` calls, to be asked for the cut; None without stop strings.
    """

    number: int
    decode: DecodeRequest
    stops: StopStrings | None


@dataclass(frozen=True, slots=True)
class DraftTexts:
    """What a request is drafted from, beside what stands in the request itself.

    Attributes:
        documents: passages and references, best first.
        history: token ids of past outputs, newest first.
        corpus: all passages of an index.
        passage: makes the document of one of them from its number.
    """

    documents: Sequence[Document] = ()
    history: Sequence[Sequence[int]] = ()
    corpus: Corpus | None = None
    passage: Callable[[int], Document] | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A request's samples and what their answers will refer to."""

    samples: Sequence[Sample]
    documents: Documents
    passages: tuple[Passage, ...]


class JobBuilder:
    """Turns requests that `validate` accepts to jobs for one target. Safe in any thread.

    Args:
        tokenizer: the target's.
        structures: compiles what outputs must look like.
        vocabulary_size: ids from here on are not known to the target.
        eos_ids: the target's end-of-sequence tokens.
    """

    def __init__(
        self, tokenizer: Tokenizer, structures: Structures, *, vocabulary_size: int, eos_ids: frozenset[int]
    ) -> None:
        self._tokenizer, self._structures = tokenizer, structures
        self._vocabulary_size, self._eos_ids = vocabulary_size, eos_ids

    def build(
        self,
        request: GenerateRequest,
        prompt: Sequence[int],
        texts: DraftTexts,
        passages: tuple[Passage, ...],
        *,
        seed: int,
    ) -> Job:
        """Make a job whose sample k has the seed `seed` + k, modulo 2**63.

        Args:
            request: what was asked for.
            prompt: token ids.
            texts: what is drafted from.
            passages: what was retrieved.
            seed: of the first sample, in [0, 2**63).

        Raises:
            InvalidRequestError: a token id beyond the vocabulary, a bad word of no token, or a structure that
                cannot be compiled.
        """
        self._check_ids(request.sampling)
        sources = self._sources(request, texts)
        corpus = texts.corpus if "corpus" in request.drafting.sources else None
        bad_words = tuple(self._bad_words(request.sampling.bad_words))
        samples = [
            self._sample(request, number, prompt, sources, corpus, bad_words, (seed + number) % (MAX_SEED + 1))
            for number in range(request.sampling.n)
        ]
        return Job(samples, Documents(texts.documents, texts.passage), passages)

    def _sample(
        self,
        request: GenerateRequest,
        number: int,
        prompt: Sequence[int],
        sources: Mapping[str, Sequence[Sequence[int]]],
        corpus: Corpus | None,
        bad_words: Sequence[tuple[int, ...]],
        seed: int,
    ) -> Sample:
        sampling, drafting, structure = request.sampling, request.drafting, request.structure
        # Constraint and stop strings keep an output's state, so each sample has its own.
        stops = StopStrings(self._tokenizer, sampling.stop, sampling.min_tokens) if sampling.stop else None
        decode = DecodeRequest(
            prompt=prompt,
            max_tokens=sampling.max_tokens,
            sampling=_options(sampling, bad_words, seed),
            constraint=self._structures.compile(structure.kind, structure.source) if structure else None,
            eos_ids=frozenset() if sampling.ignore_eos else self._eos_ids,
            stop_ids=frozenset(sampling.stop_token_ids),
            min_tokens=sampling.min_tokens,
            stop=stops,
            top_logprobs=sampling.logprobs,
            documents=sources,
            corpus=corpus,
            drafting=DrafterOptions(
                copy_prompt="prompt" in drafting.sources,
                copy_output="output" in drafting.sources,
                follow_target="target" in drafting.sources,
                ask_model="model" in drafting.sources,
                weights={str(source): weight for source, weight in drafting.weights.items()},
            ),
            max_draft_tokens=drafting.max_draft_tokens if drafting.enabled else 0,
        )
        return Sample(number, decode, stops)

    def _sources(self, request: GenerateRequest, texts: DraftTexts) -> Mapping[str, Sequence[Sequence[int]]]:
        """Token ids of what is drafted from, by source, best source first."""
        sources: dict[SourceName, Iterable[Sequence[int]]] = {
            "references": [document.token_ids for document in texts.documents],
            "prediction": [self._tokenizer.encode(request.prediction).tolist()] if request.prediction else [],
            "history": texts.history,
        }
        drafting = request.drafting
        bounded = {
            name: list(_first(ids, drafting.limits.get(name)))
            for name, ids in sources.items()
            if name in drafting.sources
        }
        return {name: ids for name, ids in bounded.items() if ids}

    def _bad_words(self, words: Iterable[str]) -> Iterator[tuple[int, ...]]:
        """Each word's tokens as they begin a text and as they follow a space, each sequence once.

        One with an id beyond the target's vocabulary can never be completed and is left out.
        """
        seen: set[tuple[int, ...]] = set()
        for word in words:
            bare = word.lstrip(" ")
            for text in (bare, f" {bare}") if bare else (word,):
                tokens = tuple(self._tokenizer.encode(text).tolist())
                if not tokens:
                    raise InvalidRequestError(
                        f"{word!r} is of no token of the target, so it cannot be banned", field="sampling.bad_words"
                    )
                if tokens not in seen and max(tokens) < self._vocabulary_size:
                    seen.add(tokens)
                    yield tokens

    def _check_ids(self, sampling: Sampling) -> None:
        named: dict[str, Iterable[int]] = {
            "logit_bias": sampling.logit_bias,
            "allowed_token_ids": sampling.allowed_token_ids,
            "stop_token_ids": sampling.stop_token_ids,
        }
        for name, ids in named.items():
            highest = max(ids, default=0)
            if highest >= self._vocabulary_size:
                raise InvalidRequestError(
                    f"token id {highest} is beyond the target's vocabulary of {self._vocabulary_size}",
                    field=f"sampling.{name}",
                )


def _first(texts: Iterable[Sequence[int]], limit: int | None) -> Iterator[Sequence[int]]:
    """The first `limit` tokens of texts, None: all."""
    for text in texts:
        part = text[:limit]
        if not part:
            return
        yield part
        limit = None if limit is None else limit - len(part)


def _options(sampling: Sampling, bad_words: Sequence[tuple[int, ...]], seed: int) -> SamplingOptions:
    return SamplingOptions(
        repetition_penalty=sampling.repetition_penalty,
        frequency_penalty=sampling.frequency_penalty,
        presence_penalty=sampling.presence_penalty,
        logit_bias=sampling.logit_bias,
        bad_words=bad_words,
        allowed_ids=frozenset(sampling.allowed_token_ids) or None,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        seed=seed,
    )
