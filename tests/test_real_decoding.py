"""The parts of benchmarks/decoding that a long run cannot afford to get wrong."""

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from refdraft.decoder.draft import Draft, Origin
from refdraft.decoder.engine import Engine, EngineConfig
from refdraft.decoder.request import DecodeRequest
from refdraft.decoder.target import Target

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
DATA = Path(__file__).parent.parent.parent / "shared" / "data"

Module = Callable[[str], ModuleType]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Module:
    """Imports one of the modules that the scripts are made of."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module


class Copier:
    """Drafts what stands at the place reached, without a doubt."""

    def __init__(self, text: Sequence[int]) -> None:
        self._text, self._at = text, 0

    def propose(self, limit: int) -> Draft:
        tokens = self._text[self._at : self._at + min(limit, 8)]
        return Draft.chain(tokens, [Origin("prompt", 0, 0)] * len(tokens), [1.0] * len(tokens))

    def observe(self, tokens: Sequence[int], logits: object = None) -> None:
        self._at += len(tokens)


class Broken(Copier):
    """Fails at once."""

    def propose(self, limit: int) -> Draft:
        raise RuntimeError("no draft")


@pytest.fixture(scope="module")
def engine(tiny_model_directory: Path) -> Engine:
    config = EngineConfig(max_draft_tokens=8)
    target = Target.load(tiny_model_directory, slots=1, context_limit=1024, max_width=config.widest_pass)
    return Engine(target, config)


def run(ids: list[int], seconds: float) -> dict[str, Any]:
    times = {"seconds": seconds, "build_seconds": 0.0, "cpu_seconds": 2 * seconds}
    return {"ids": ids, "steps": len(ids) - 1, "drafted": 4, "accepted": 1} | times


def record(id: str, **runs: dict[str, Any]) -> dict[str, Any]:
    return {"id": id, "set": "rag", "prompt_tokens": 9, "cut": False, "prefill_seconds": 1.0, "runs": runs}


def test_a_long_prompt_is_cut_at_the_start_of_its_text(
    module: Module, tiny_tokenizer: "PreTrainedTokenizerFast"
) -> None:
    prompts = module("decoding.prompts")
    prompt = prompts.Prompt("1", "rag", "Summarize: ", " ".join(str(n) for n in range(200)))
    whole, cut = prompts.encode(tiny_tokenizer, prompt, 10_000)
    assert not cut
    ids, cut = prompts.encode(tiny_tokenizer, prompt, 200)
    assert cut
    assert 190 <= len(ids) <= 200
    text = str(tiny_tokenizer.decode(ids))
    assert text.startswith("<|im_start|>user\nSummarize: ")
    assert text[-60:] == tiny_tokenizer.decode(whole)[-60:]


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no data at {DATA}")
def test_every_set_has_its_prompts_and_each_a_name_of_its_own(module: Module) -> None:
    prompts = module("decoding.prompts")
    sets = {name: list(prompts.read_prompts(DATA, name)) for name in prompts.SETS}
    sizes = {name: len(found) for name, found in sets.items()}
    assert sizes == {
        "rag": 25, "summarization": 25, "jfleg": 40, "edits": 20, "copying": 10, "translation": 10, "math_reasoning": 10
    }  # fmt: skip
    every = [prompt for found in sets.values() for prompt in found]
    assert len({prompt.id for prompt in every}) == len(every)
    assert all(prompt.set == name for name, found in sets.items() for prompt in found)
    assert {prompt.set for prompt in every if prompt.predicted} == {"edits"}
    texts = [prompt.text for name in ("edits", "copying") for prompt in sets[name]]
    assert len(set(texts)) == 30
    assert all(100 <= len(text.split()) <= 200 for text in texts)


def test_prompt_lookup_copies_behind_the_first_match_of_the_last_two_tokens(module: Module) -> None:
    lookup = module("decoding.drafters").LookupDrafter
    # 7 8 stands twice before: what follows the first is taken, up to the end of the sequence.
    drafter = lookup([1, 7, 8, 3, 4, 7, 8, 5, 7], frozenset())
    drafter.observe([8])
    assert drafter.propose(64).tokens == (3, 4, 7, 8, 5, 7, 8)
    assert drafter.propose(2).tokens == (3, 4)
    # Two tokens stand nowhere else, the last one does; and a draft never holds the token that ends the output.
    drafter = lookup([8, 3, 2, 4, 9], frozenset([2]))
    drafter.observe([8])
    assert drafter.propose(64).tokens == (3,)


def test_prompt_lookup_drafts_ten_tokens_at_most(module: Module) -> None:
    drafter = module("decoding.drafters").LookupDrafter([1, *range(50, 90), 1], frozenset())
    assert drafter.propose(64).tokens == tuple(range(50, 60))


def test_suffix_decoding_drafts_no_more_than_it_has_matched(module: Module) -> None:
    pytest.importorskip("arctic_inference")
    drafters = module("decoding.drafters")
    cache = drafters.SuffixDrafter.new_cache()
    drafter = drafters.SuffixDrafter(cache, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    drafter.observe([2, 3])
    draft = drafter.propose(64)
    assert draft.tokens == (4, 5)
    assert draft.survivals == (1.0, 1.0)


def test_suffix_decoding_draws_on_former_answers(module: Module) -> None:
    pytest.importorskip("arctic_inference")
    drafters = module("decoding.drafters")
    cache = drafters.SuffixDrafter.new_cache()
    drafters.SuffixDrafter(cache, [1, 2]).observe([11, 12, 13, 14])
    drafter = drafters.SuffixDrafter(cache, [3, 4])
    assert drafter.propose(64).tokens == ()
    drafter.observe([11, 12])
    assert drafter.propose(64).tokens == (13, 14)


def race(module: Module, engine: Engine, turn: int = 0, **texts: Sequence[int] | None) -> dict[str, Any]:
    """A race of plain decoding (None), and of drafting each text."""
    parts = module("decoding.race")
    request = DecodeRequest([50, 61, 72, 83, 50, 61], 20)
    entries = {
        name: parts.Entry(request, lambda _, text=text: None if text is None else Copier(text), planned=text is None)
        for name, text in texts.items()
    }
    runs: dict[str, Any] = parts.Course(engine, None, Path()).race(entries, turn)[1]
    return runs


def test_all_methods_of_a_race_decode_the_same_prompt(module: Module, engine: Engine) -> None:
    truth = race(module, engine, plain=None)["plain"].ids
    for turn in range(3):
        runs = race(module, engine, turn, plain=None, right=truth, wrong=[7] * 20)
        assert [found.ids for found in runs.values()] == [truth] * 3
        assert runs["plain"].steps == 19
        assert runs["right"].steps == 3  # 8 drafted tokens and one more, twice; then the last


def test_a_peers_draft_is_verified_whole_however_often_it_fails(module: Module, engine: Engine) -> None:
    wrong = race(module, engine, wrong=[512 - 1] * 200)["wrong"]
    assert wrong.steps == 19
    assert wrong.accepted == 0
    assert wrong.drafted == sum(min(8, 18 - step) for step in range(19))


def test_a_drafter_that_fails_is_no_result(module: Module, engine: Engine) -> None:
    parts = module("decoding.race")
    entry = parts.Entry(DecodeRequest([50, 61], 4), lambda _: Broken([]), planned=False)
    with pytest.raises(RuntimeError, match="failed"):
        parts.Course(engine, None, Path()).race({"broken": entry}, 0)


def test_a_half_written_record_is_dropped(module: Module, tmp_path: Path) -> None:
    path = tmp_path / "build" / "records.jsonl"
    records = module("decoding.records").Records(path)
    records.add(record("1", plain=run([1], 1.0)))
    path.write_text(path.read_text() + '{"id": "2"')
    records = module("decoding.records").Records(path)
    assert records.has("1", ["plain"])
    assert not records.has("2", ["plain"])
    records.add(record("3", plain=run([1], 1.0)))
    assert [found["id"] for found in module("decoding.records").Records(path).of("rag")] == ["1", "3"]


def test_a_prompt_that_lacks_a_method_is_run_again_by_all(module: Module, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    records = module("decoding.records").Records(path)
    records.add(record("1", plain=run([1], 1.0)))
    assert not records.has("1", ["plain", "refdraft"])
    records.add(record("1", plain=run([1], 2.0), refdraft=run([1], 1.0)))
    (found,) = module("decoding.records").Records(path).of("rag")
    assert found["runs"]["plain"]["seconds"] == 2.0


def test_outputs_of_unlike_lengths_are_compared_by_the_token(module: Module) -> None:
    pair = record("1", plain=run([1, 2, 3], 4.0), refdraft=run([1, 2, 4, 5, 6], 4.0))
    figures = module("decoding.records").compare([pair], "refdraft", "plain")
    assert figures["identical"] == 0
    assert figures["speed"]["total"] == figures["speed"]["median"] == 2.0


def test_a_ratio_above_one_says_that_the_method_is_faster(module: Module) -> None:
    pairs = [
        record("1", plain=run([1, 2, 3], 4.0), refdraft=run([1, 2, 3], 2.0)),
        record("2", plain=run([1, 2, 3], 2.0), refdraft=run([1, 2, 4], 2.5)),
        record("3", plain=run([1], 1.0), refdraft=run([1], 9.0)),  # ended at once: nothing to compare in time
        record("4", plain=run([1, 2], 1.0)),
    ]
    figures = module("decoding.records").summarise(pairs, [("refdraft", "plain"), ("prompt_lookup", "plain")])
    speed = {"median": 1.4, "total": 1.333, "worst": 0.8}
    assert figures["pairs"] == {"refdraft / plain": {"prompts": 3, "identical": 2, "speed": speed, "cpu_speed": speed}}
    assert figures["methods"]["refdraft"]["tokens_per_step"] == 1.0
    assert figures["methods"]["refdraft"]["acceptance"] == 0.25
