"""Text in, text out: retrieval, prompt, sources, engine, and what is read off its commits."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from refdraft.decoder.async_engine import AsyncEngine
from refdraft.decoder.corpus import Corpus
from refdraft.decoder.drafter import compile_drafter
from refdraft.decoder.engine import Engine, EngineConfig
from refdraft.decoder.target import Target
from refdraft.errors import NotFoundError
from refdraft.retriever.index import Index
from refdraft.retriever.ranker import rank_texts
from refdraft.retriever.tokenizer import Tokenizer
from refdraft.service.answer import Answer
from refdraft.service.attribution import Document
from refdraft.service.config import PipelineConfig
from refdraft.service.history import History
from refdraft.service.job import DraftTexts, Job, JobBuilder
from refdraft.service.loading import engine_config, load_draft_model, load_target
from refdraft.service.prompts import PromptEncoder
from refdraft.service.structure import Structures
from refdraft.service.types import (
    Completion,
    Delta,
    GenerateRequest,
    IndexInfo,
    ModelInfo,
    Passage,
    Retrieval,
)
from refdraft.service.validation import MAX_SEED, searchable_text, validate, validate_retrieval, validate_single
from refdraft.service.variants import token_classes

_T = TypeVar("_T")

_RANKED_REFERENCES = 64  # of more references than this, those that fit the prompt best are drafted from


class Pipeline:
    """A target with its engine and indexes. Use it as a context manager, or close it.

    Every method may be called from any thread or event loop.
    """

    def __init__(
        self,
        target: Target,
        encoder: PromptEncoder,
        tokenizer: Tokenizer,
        indexes: Mapping[str, Index],
        *,
        name: str,
        config: PipelineConfig,
        engine_config: EngineConfig,
    ) -> None:
        self._target, self._encoder, self._tokenizer = target, encoder, tokenizer
        self._indexes, self._name, self._config = dict(indexes), name, config
        structures = Structures(tokenizer, vocabulary_size=target.vocabulary_size, eos_ids=target.eos_ids)
        self._jobs = JobBuilder(tokenizer, structures, vocabulary_size=target.vocabulary_size, eos_ids=target.eos_ids)
        compile_drafter()
        draft_model = load_draft_model(config, target, tokenizer)
        engine = Engine(target, engine_config, classes=token_classes(tokenizer), draft_model=draft_model)
        engine.calibrate()
        self._numerics = engine_config.numerics
        self._history = History(config.history_tokens, config.history_lifetime_s)
        stores = {name: index.passages.token_store for name, index in indexes.items()}
        self._corpora = {name: Corpus(store.tokens, store.suffixes, store.starts) for name, store in stores.items()}
        self._engine = AsyncEngine(engine, queue_limit=config.queue_limit)

    @classmethod
    def load(
        cls,
        model: str | Path | None = None,
        *,
        indexes: Mapping[str, Path] | None = None,
        config: PipelineConfig = PipelineConfig(),
    ) -> Self:
        """Load a target and open indexes.

        Args:
            model: a checkpoint folder or hub name; None takes the embedded default model, which is fetched and
                converted once.
            indexes: directory of each index, by the name that requests use.
            config: how the target runs.

        Raises:
            NotFoundError: a model or an index does not exist.
            PreconditionError: the model's family is not supported, or an index is of another tokenizer.
        """
        engine = engine_config(config)
        target, auto_tokenizer, model_name = load_target(model, config, engine)
        tokenizer = Tokenizer(auto_tokenizer.backend_tokenizer)
        opened = {
            name: Index.open(Path(directory), name=name, tokenizer_fingerprint=tokenizer.fingerprint)
            for name, directory in (indexes or {}).items()
        }
        encoder = PromptEncoder(auto_tokenizer, target.vocabulary_size)
        return cls(target, encoder, tokenizer, opened, name=model_name, config=config, engine_config=engine)

    async def stream(
        self, request: GenerateRequest, *, namespace: str = ""
    ) -> AsyncGenerator[Delta | Completion, None]:
        """Answer a request: of each sample deltas as they are committed, then the completion. Samples interleave.

        Closing the iterator cancels the request.

        Args:
            request: what is asked for.
            namespace: whose past outputs may be drafted from, where they are kept; see `PipelineConfig.history_tokens`.

        Raises:
            RefdraftError: see `refdraft.errors`; raised before the first delta unless the service fails, or options
                that leave no token to choose contradict one another only later.
        """
        with self._engine.place():
            job = await asyncio.to_thread(self._prepare, request, namespace)
            answers = [
                Answer(job, sample, self._tokenizer, self._config.min_attribution_tokens) for sample in job.samples
            ]
            unfinished = len(answers)
            async with aclosing(self._engine.stream([sample.decode for sample in job.samples])) as commits:
                async for number, commit in commits:
                    if delta := answers[number].add(commit):
                        yield delta
                    if commit.finish_reason:
                        unfinished -= 1
                        last = answers[number].completion()
                        self._history.add(namespace, last.token_ids)
                        if unfinished:
                            yield last
        yield last  # when its place is free for the caller's next request

    async def generate(self, request: GenerateRequest) -> Completion:
        """Answer a request for one sample as a whole."""
        validate_single(request)
        return (await self.generate_samples(request))[0]

    async def generate_samples(self, request: GenerateRequest) -> tuple[Completion, ...]:
        """Answer a request as a whole: one completion for each sample, in their order."""
        async with aclosing(self.stream(request)) as events:
            completions = [event async for event in events if isinstance(event, Completion)]
        return tuple(sorted(completions, key=lambda completion: completion.sample))

    def generate_sync(self, request: GenerateRequest) -> Completion:
        """`generate` for callers without an event loop, or inside one that may be blocked."""
        return _run(self.generate(request))

    def generate_samples_sync(self, request: GenerateRequest) -> tuple[Completion, ...]:
        """`generate_samples` for callers without an event loop, or inside one that may be blocked."""
        return _run(self.generate_samples(request))

    async def retrieve(self, retrieval: Retrieval) -> tuple[Passage, ...]:
        """Find passages for a query, best first."""
        validate_retrieval(retrieval, query_required=True)
        return await asyncio.to_thread(self._search, retrieval, retrieval.query or "")

    def model_info(self) -> ModelInfo:
        """Describe the target."""
        return ModelInfo(
            name=self._name,
            vocabulary_size=self._target.vocabulary_size,
            context_limit=self._target.context_limit,
            dtype=str(self._target.dtype).removeprefix("torch."),
            device=str(self._target.device),
            numerics=self._numerics,
            slots=self._target.slots,
            tokenizer_fingerprint=self._tokenizer.fingerprint,
        )

    def index_infos(self) -> tuple[IndexInfo, ...]:
        """Describe the opened indexes."""
        return tuple(
            IndexInfo(
                name=name,
                documents=index.manifest.documents,
                passages=index.manifest.passages,
                tokens=index.manifest.tokens,
                modes=index.modes,
                tokenizer_fingerprint=index.manifest.tokenizer_fingerprint,
            )
            for name, index in self._indexes.items()
        )

    def close(self) -> None:
        """Stop the engine and give the indexes back; requests that have not finished fail."""
        self._engine.close()
        for index in self._indexes.values():
            index.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _index(self, name: str) -> Index:
        if name not in self._indexes:
            known = ", ".join(sorted(self._indexes)) or "none"
            raise NotFoundError(f"no index is named {name!r}; opened are: {known}")
        return self._indexes[name]

    def _search(self, retrieval: Retrieval, query: str) -> tuple[Passage, ...]:
        index = self._index(retrieval.index)
        return tuple(
            Passage(
                document_id=hit.passage.document_id,
                title=hit.passage.title,
                text=hit.passage.text,
                start=hit.passage.start,
                score=hit.score,
                metadata=hit.passage.metadata,
            )
            for hit in index.search(query, top_k=retrieval.top_k, mode=retrieval.mode)
        )

    def _prepare(self, request: GenerateRequest, namespace: str) -> Job:
        validate(request, self._config.limits)
        passages: tuple[Passage, ...] = ()
        if request.retrieval:
            passages = self._search(request.retrieval, request.retrieval.query or searchable_text(request))
        prompt, passages = self._place(request, passages)
        texts = self._texts(request, passages, namespace) if request.drafting.enabled else DraftTexts()
        seed = request.sampling.seed
        seed = secrets.randbelow(MAX_SEED + 1) if seed is None else int(seed)
        return self._jobs.build(request, prompt, texts, passages, seed=seed)

    def _place(self, request: GenerateRequest, passages: tuple[Passage, ...]) -> tuple[list[int], tuple[Passage, ...]]:
        """The prompt's token ids; passages that leave no room for an answer are dropped, the last ones first."""
        if not request.retrieval or request.retrieval.placement == "draft_only":
            return self._encoder.encode(request), passages
        limit = self._target.context_limit
        room = limit - min(request.sampling.max_tokens, limit // 4)
        while True:
            prompt = self._encoder.encode(request, passages)
            if len(prompt) <= room or not passages:
                return prompt, passages
            passages = passages[:-1]

    def _texts(self, request: GenerateRequest, passages: Sequence[Passage], namespace: str) -> DraftTexts:
        """What the request is drafted from; its history is that of `namespace`."""
        name = request.drafting.corpus
        index = self._index(name) if name else None
        return DraftTexts(
            documents=self._documents(request, passages),
            history=self._history.outputs(namespace),
            corpus=self._corpora[name] if index else None,
            passage=partial(self._passage, index) if index else None,
        )

    def _passage(self, index: Index, number: int) -> Document:
        passage = index.passages[number]
        return Document.of_text(self._tokenizer, passage.text, id=passage.document_id, start=passage.start)

    def _documents(self, request: GenerateRequest, passages: Sequence[Passage]) -> list[Document]:
        """What the request drafts from, best first: its passages, then its references in their own order."""
        references = request.references
        if len(references) > _RANKED_REFERENCES:
            query = searchable_text(request) or request.prediction
            order = rank_texts(query, [reference.text for reference in references], _RANKED_REFERENCES)
            references = [references[position] for position in order]
        texts = [(passage.document_id, passage.text, passage.start) for passage in passages]
        texts += [(reference.id, reference.text, 0) for reference in references]
        documents: list[Document] = []
        left = self._config.max_reference_tokens
        for document_id, text, start in texts:
            if left <= 0:
                break
            documents.append(Document.of_text(self._tokenizer, text, id=document_id, start=start, most=left))
            left -= len(documents[-1].token_ids)
        return documents


def _run(call: Coroutine[None, None, _T]) -> _T:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(call)
    with ThreadPoolExecutor(1) as thread:  # a notebook's own thread runs a loop already
        return thread.submit(asyncio.run, call).result()
