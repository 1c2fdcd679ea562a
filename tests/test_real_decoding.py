"""The parts of benchmarks/real_decoding.py that a long run cannot afford to get wrong."""

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "real_decoding.py"


@pytest.fixture(scope="module")
def bench() -> Any:
    spec = importlib.util.spec_from_file_location("real_decoding", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(ids: list[int], seconds: float) -> dict[str, Any]:
    return {"ids": ids, "seconds": seconds, "prefill_seconds": 1.0, "steps": len(ids) - 1}


def test_a_long_prompt_is_cut_at_the_start_of_its_text(bench: Any, tiny_tokenizer: "PreTrainedTokenizerFast") -> None:
    prompt = bench.Prompt("1", "rag", "Summarize: ", " ".join(str(n) for n in range(200)))
    whole, cut = bench.encode(tiny_tokenizer, prompt, 10_000)
    assert not cut
    ids, cut = bench.encode(tiny_tokenizer, prompt, 200)
    assert cut
    assert 190 <= len(ids) <= 200
    text = str(tiny_tokenizer.decode(ids))
    assert text.startswith("<|im_start|>user\nSummarize: ")
    assert text[-60:] == tiny_tokenizer.decode(whole)[-60:]


def test_a_half_written_record_is_dropped(bench: Any, tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"
    assert bench.read_records(records) == []
    records.write_text('{"id": "1"}\n{"id": "2"')
    assert bench.read_records(records) == [{"id": "1"}]
    assert records.read_text() == '{"id": "1"}\n'


def test_a_ratio_above_one_says_that_the_method_is_faster(bench: Any) -> None:
    runs = [
        {"plain": run([1, 2, 3], 5.0), "drafted": run([1, 2, 3], 3.0)},
        {"plain": run([1, 2, 3], 3.0), "drafted": run([1, 2, 4], 2.0)},
        {"plain": run([1], 1.0), "drafted": run([1], 1.0)},  # ended at once: nothing to compare in time
    ]
    figures = bench.compare([{"runs": pair} for pair in runs], "plain", "drafted")
    assert figures["identical"] == 2
    assert figures["speed"] == {"median": 1.583, "total": 1.6}
    assert figures["speed_without_prefill"] == {"median": 2.0, "total": 2.0}
