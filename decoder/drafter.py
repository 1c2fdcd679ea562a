"""One request's drafter: its sources in one pool, what they propose, and what was learned of them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from refdraft.decoder.candidates import new_candidates
from refdraft.decoder.corpus import Corpus
from refdraft.decoder.corpus_source import CorpusSource
from refdraft.decoder.draft import EMPTY, Draft, Origin
from refdraft.decoder.growth import MOST_NODES, follow, grow, new_growth
from refdraft.decoder.odds import SurvivalOdds
from refdraft.decoder.pool import SOURCES, add_document, fill_pool, set_guess
from refdraft.decoder.runners import no_runners, read_runners

if TYPE_CHECKING:
    from refdraft.decoder.draft_model import Guesser


@dataclass(frozen=True, slots=True)
class DrafterOptions:
    """What may be drafted from beside documents, and how much each source is trusted.

    Attributes:
        copy_prompt: whether spans may be copied from the prompt.
        copy_output: whether spans may be copied from the output so far.
        follow_target: whether what the target thought likely may be drafted.
        ask_model: whether a draft model is asked, where the engine has one.
        weights: how much likelier than others a source's spans are held to be, by its name; above 0, 1 if left out.
    """

    copy_prompt: bool = True
    copy_output: bool = True
    follow_target: bool = True
    ask_model: bool = True
    weights: Mapping[str, float] = field(default_factory=dict)


class Drafter:
    """Follows one context and proposes the likeliest continuations found in all its sources.

    Args:
        prompt: token ids of the prompt.
        documents: token ids of the documents of each further source, by the source's name, best document first.
        output_room: output tokens at most.
        classes: int32 [vocabulary], the class of each token; tokens of one class may stand for one another, and those
            of class 0 end a sentence or a line. A span ends before the first id that is not below its size.
        odds: how likely candidates are to hold; learned from and added to.
        options: what else is drafted from.
        branching: whether drafts may branch; else they are chains.
        guesser: a draft model's view of the context.
        corpus: a large text whose passages are let in where they go on as the context does.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        documents: Mapping[str, Sequence[Sequence[int]]],
        *,
        output_room: int,
        classes: NDArray[np.int32],
        odds: SurvivalOdds,
        options: DrafterOptions = DrafterOptions(),
        branching: bool = True,
        guesser: "Guesser | None" = None,
        corpus: Corpus | None = None,
    ) -> None:
        texts = [(SOURCES.index(name), ids) for name, documents_ in documents.items() for ids in documents_]
        self._pool = fill_pool(
            prompt,
            texts,
            output_room=output_room,
            classes=classes,
            copy_prompt=options.copy_prompt,
            copy_output=options.copy_output,
        )
        biases = [math.log(options.weights.get(name, 1.0)) for name in SOURCES]
        self._found, self._growth = new_candidates(np.array(biases)), new_growth()
        self._weights, self._guesser = odds.weights, guesser
        self._corpus = CorpusSource(corpus, prompt) if corpus else None
        self._branching, self._follow_target = branching, options.follow_target
        self._origins = _Origins(self._pool.documents)

    def propose(self, limit: int) -> Draft:
        """A draft of at most `limit` tokens: of all trees, or chains, the one with the highest survivals."""
        if self._guesser:
            set_guess(self._pool, *self._guesser.guess())
            self._found.size[:] = 0  # what was found before is of another guess
        nodes = grow(self._pool, self._found, self._growth, self._weights, min(limit, MOST_NODES), self._branching)
        if not nodes:
            return EMPTY
        chosen = self._growth.nodes[:nodes]
        tokens, parents, _, positions = self._growth.branches[chosen, :4].T.tolist()
        owners = self._pool.owner[positions].tolist()
        origins = [self._origins.of(owner, position) for owner, position in zip(owners, positions, strict=True)]
        survivals = self._growth.survivals[chosen].tolist()
        return Draft(tuple(tokens), tuple(parents), tuple(origins), tuple(survivals))

    def observe(self, tokens: Sequence[int], logits: NDArray[np.float32] | None = None) -> None:
        """Learn from the tokens just committed, and move on behind them.

        Args:
            tokens: token ids.
            logits: float32 [tokens, vocabulary], what the target chose each from; None where it is not known.
        """
        if self._guesser:
            self._guesser.observe(tokens)
        if logits is None or not self._follow_target:
            ids, looks = no_runners(len(tokens))
        else:
            ids, looks = read_runners(logits)
        follow(self._pool, self._found, self._growth, self._weights, np.array(tokens, np.int32), ids, looks)
        for passage, offset, excerpt in self._corpus.observe(tokens) if self._corpus else ():
            self.add_document("corpus", excerpt, passage, offset)

    def add_document(
        self, source: str, tokens: Sequence[int] | NDArray[np.int32], number: int, offset: int = 0
    ) -> bool:
        """Draft from one more document, or a part of it, from now on; False where no room is left for it.

        Args:
            source: its source.
            tokens: token ids.
            number: what origins call the document.
            offset: of the first token within the document.
        """
        self._found.size[:] = 0  # what was found before may be incomplete now
        return add_document(self._pool, SOURCES.index(source), np.asarray(tokens, np.int32), number, offset)


def compile_drafter() -> None:
    """Compile what drafting runs, unless it is on disk already: some ten seconds, once on a machine."""
    classes = np.zeros(1, np.int32)
    drafter = Drafter([0], {"references": [[0]]}, output_room=1, classes=classes, odds=SurvivalOdds())
    drafter.propose(1)
    drafter.add_document("corpus", [0], 0)
    set_guess(drafter._pool, np.zeros(1, np.int32), np.zeros(1, np.uint8))
    drafter.observe([0])


class _Origins:
    """Names what stands at a position."""

    def __init__(self, documents: NDArray[np.int32]) -> None:
        self._documents = documents
        self._known: dict[int, tuple[str, int, int]] = {}

    def of(self, owner: int, position: int) -> Origin:
        """The origin of the token at a position of document `owner`."""
        if owner not in self._known:
            source, _, start, _, number = self._documents[owner].tolist()
            self._known[owner] = SOURCES[source], number, start
        name, number, start = self._known[owner]
        return Origin(name, number, position - start)
