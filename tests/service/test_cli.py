"""The command line as a user meets it: output, exit codes, one-line errors."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from refdraft.service.cli import main
from refdraft.service.types import GenerateRequest, Sampling, Structure

from .conftest import Service


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def failure(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("refdraft: ")
    assert captured.err.count("\n") == 1
    return captured.err


def test_text_goes_to_stdout_and_figures_to_stderr(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--server", service.address, "--prompt", "one two"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "one two \n"
    assert "1.50 tokens per step, 1 of 2 drafted tokens accepted" in captured.err


def test_json_is_one_object_with_the_documented_keys(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--server", service.address, "--prompt", "one two", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    documented = {"text", "token_ids", "finish_reason", "usage", "drafting", "attributions"}
    assert documented <= printed.keys()
    assert printed["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 2,
        "accepted_prediction_tokens": 0,
        "rejected_prediction_tokens": 0,
    }
    assert printed["drafting"] == {
        "steps": 1,
        "drafted_tokens": 2,
        "accepted_tokens": 1,
        "tokens_per_step": 1.5,
        "by_source": {"prompt": {"drafted_tokens": 2, "accepted_tokens": 1}},
        "drafter_faults": 0,
    }
    assert printed["attributions"] == [
        {"output_start": 0, "output_end": 1, "document_id": "d", "document_start": 5, "document_end": 6}
    ]


def test_every_option_reaches_the_request(
    service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    requests: list[GenerateRequest] = []
    stream = service.pipeline.stream

    def listen(request: GenerateRequest) -> object:
        requests.append(request)
        return stream(request)

    monkeypatch.setattr(service.pipeline, "stream", listen)
    schema, grammar = tmp_path / "schema.json", tmp_path / "grammar.lark"
    schema.write_text("{}", encoding="utf-8")
    grammar.write_text('start: "a"', encoding="utf-8")
    structures = [
        (["--json-object"], Structure(kind="json_object")),
        (["--json-schema", str(schema)], Structure(kind="json_schema", source="{}")),
        (["--regex", "a+"], Structure(kind="regex", source="a+")),
        (["--grammar", str(grammar)], Structure(kind="lark", source='start: "a"')),
    ]
    ask = ["generate", "--server", service.address, "--prompt", "a", "--json"]
    for chosen, structure in structures:
        assert main([*ask, *chosen]) == 0
        assert requests[-1] == GenerateRequest(prompt="a", structure=structure)
    options = """
        --max-tokens 9 --min-tokens 2 --samples 3 --seed 4 --temperature 0.5 --sampling-top-k 6 --top-p 0.7 --min-p 0.1
        --repetition-penalty 1.25 --presence-penalty -1 --frequency-penalty 2 --logit-bias 5=-1.5 --logit-bias 6=2
        --bad-word x --bad-word y --allowed-token 7 --allowed-token 8 --stop u --stop v --stop-token 8 --ignore-eos
        --logprobs 0
    """
    assert main([*ask, *options.split()]) == 0
    assert requests[-1].sampling == Sampling(
        max_tokens=9,
        min_tokens=2,
        n=3,
        seed=4,
        temperature=0.5,
        top_k=6,
        top_p=0.7,
        min_p=0.1,
        repetition_penalty=1.25,
        presence_penalty=-1.0,
        frequency_penalty=2.0,
        logit_bias={5: -1.5, 6: 2.0},
        bad_words=("x", "y"),
        allowed_token_ids=(7, 8),
        stop=("u", "v"),
        stop_token_ids=(8,),
        ignore_eos=True,
        logprobs=0,
    )


def test_samples_are_printed_one_after_the_other(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--server", service.address, "--prompt", "one two", "--samples", "2"]) == 0
    captured = capsys.readouterr()
    # The scripted pipeline completes the last sample first.
    assert captured.out == f"--- sample 1, seed 0\none one two two \n--- sample 0, seed {2**63 - 1}\none two \n"
    assert captured.err.count("tokens per step") == 2


def test_json_of_samples_is_one_object_a_line(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--prompt", "one two", "--samples", "2", "--logprobs", "1", "--json"]
    assert main(["generate", "--server", service.address, *arguments]) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sorted(sample["sample"] for sample in printed) == [0, 1]
    likely = {"token_id": 7, "logprob": -0.25}
    assert printed[0]["logprobs"] == [likely | {"top": [likely]}] * 2


def test_a_prompt_may_come_from_a_file(service: Service, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("from a file", encoding="utf-8")
    assert main(["generate", "--server", service.address, "--prompt-file", str(file)]) == 0
    assert capsys.readouterr().out == "from a file \n"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--max-tokens", "0"], "--max-tokens: must be in 1.."),
        (["--temperature", "nan"], "--temperature: must be in [0, 1e+30], not nan"),
        (["--top-p", "2"], "--top-p: must be in (0, 1]"),
        (["--sampling-top-k", "-1"], "--sampling-top-k: must be in 0.."),
        (["--seed", "-1"], "--seed: must be in 0.."),
        (["--stop", ""], "--stop: holds an empty string"),
        (["--min-tokens", "300"], "--min-tokens: must not exceed max_tokens, which is 256"),
        (["--samples", "17"], "--samples: must be in 1..16"),
        (["--min-p", "2"], "--min-p: must be in [0, 1], not 2.0"),
        (["--repetition-penalty", "0"], "--repetition-penalty: must be in (0, 10]"),
        (["--presence-penalty", "-3"], "--presence-penalty: must be in [-2, 2], not -3.0"),
        (["--frequency-penalty", "nan"], "--frequency-penalty: must be in [-2, 2], not nan"),
        (["--logit-bias", "5"], "--logit-bias: must be ID=BIAS, such as 42=-1.5, not '5'"),
        (["--logit-bias", "5=101"], "--logit-bias: must be in [-100, 100], not 101.0"),
        (["--bad-word", ""], "--bad-word: holds an empty string, which bans nothing"),
        (["--allowed-token", "1", "--allowed-token", "-1"], "--allowed-token: must be in 0.."),
        (["--stop-token", "-1"], "--stop-token: must be in 0.."),
        (["--logprobs", "21", "--json"], "--logprobs: must be in 0..20"),
        (["--logprobs", "2"], "--logprobs are printed with the tokens: add --json"),
        (["--json-object", "--min-tokens", "1"], "--min-tokens: does not go with a structure"),
        (["--json-object", "--ignore-eos"], "--ignore-eos: does not go with a structure"),
        (["--json-object", "--allowed-token", "1"], "--allowed-token: does not go with a structure"),
        (["--json-object", "--regex", "a"], "--regex: not allowed with argument --json-object"),
        (["--regex", ""], "--regex: is empty"),
        (["--max-draft-tokens", "65"], "--max-draft-tokens: must be in 0..64"),
        (["--index", "manual", "--top-k", "0"], "--top-k: must be in 1..100"),
        (["--index", ""], "--index: name an index"),
        (["--top-k", "3"], "add --index"),
        (["--mode", "bm25"], "add --index"),
        (["--passages", "draft"], "add --index"),
        (["--prompt", ""], "--prompt: is empty"),
    ],
)
@pytest.mark.parametrize("place", [["--server", "localhost:1"], ["--model", "no-such-model"]])
def test_a_bad_value_is_wrong_usage_before_anything_is_loaded_or_asked(
    capsys: pytest.CaptureFixture[str], place: list[str], options: list[str], words: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["generate", "--prompt", "a", *place, *options])
    assert caught.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("refdraft generate: error: ")
    assert words in last


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--slots", "0"], "--slots: must be in 1..1024, not 0"),
        (["--context-limit", "1"], "--context-limit: must be at least 2"),
        (["--port", "70000"], "--port: must be in 0..65535, not 70000"),
    ],
)
def test_a_bad_value_of_serve_is_wrong_usage(
    capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["serve", "--model", "no-such-model", *options])
    assert caught.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"refdraft serve: error: argument {words}"


@pytest.mark.parametrize(
    ("content", "words"), [("", "prompt: is empty"), (" \n", "retrieval.query: the prompt holds no text")]
)
def test_an_unusable_prompt_file_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str, words: str
) -> None:
    (tmp_path / "prompt.txt").write_text(content, encoding="utf-8")
    file = str(tmp_path / "prompt.txt")
    assert words in failure(capsys, "generate", "--prompt-file", file, "--index", "none", "--model", "none")


@pytest.mark.parametrize("command", [["generate", "--prompt", "a", "--index"], ["serve", "--port", "0", "--index"]])
def test_a_folder_that_is_no_index_is_told_before_a_model_is_loaded(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: list[str]
) -> None:
    name = "docs=" if command[0] == "serve" else ""
    for folder, words in ((tmp_path / "moon", "moon does not exist"), (tmp_path, "has no manifest.json")):
        assert words in failure(capsys, *command, f"{name}{folder}", "--model", "no-such-model")


def test_a_reference_that_does_not_exist_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no-such-file" in failure(capsys, "generate", "--prompt", "a", "--reference", "no-such-file")


@pytest.mark.parametrize("options", [["--no-color"], []])
def test_control_sequences_reach_a_pipe_but_no_terminal(
    service: Service, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    monkeypatch.setenv("NO_COLOR", "" if options else "1")
    arguments = ["generate", "--server", service.address, "--prompt", "a\x1b[2Jb", *options]
    assert main(arguments) == 0
    assert capsys.readouterr().out == "a\x1b[2Jb \n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(arguments) == 0
    assert capsys.readouterr().out == "a\ufffd[2Jb \n"


def test_json_for_a_terminal_holds_no_control_characters(
    service: Service, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["generate", "--server", service.address, "--json", "--prompt", "a\x9b2Jé"]
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["text"] == "a\x9b2Jé "
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["text"] == "a\ufffd2Jé "


def test_help_tells_the_two_top_ks_apart(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["generate", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "passages to fetch (for the likeliest tokens see --sampling-top-k); default: 5" in shown
    assert "sample from the N likeliest tokens (for passages see --top-k)" in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve", "--port", "0", "--device", "moon", "--model", "."], "device: torch cannot use 'moon' here"),
        (["bench", "drafts", "--data", "none", "--limit", "0"], "--limit"),
        (["index", "build", "none", "--tokenizer", "none", "--out", "none"], "none/tokenizer.json does not exist"),
    ],
)
def test_bad_options_are_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    assert words in failure(capsys, *arguments)


def test_a_folder_that_may_not_be_made_is_one_line(
    tiny_model_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("words", encoding="utf-8")
    source, out = str(tmp_path / "a.txt"), "/proc/no/where"
    message = failure(capsys, "index", "build", source, "--tokenizer", str(tiny_model_directory), "--out", out)
    assert message == "refdraft: /proc/no: No such file or directory\n"


def test_references_that_are_not_utf8_are_refused_by_name(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "latin.txt"
    file.write_bytes(b"caf\xe9")
    message = failure(capsys, "generate", "--prompt", "a", "--reference", str(file))
    assert "latin.txt is not UTF-8" in message


def test_no_server_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    message = failure(capsys, "generate", "--prompt", "a", "--server", "127.0.0.1:1")
    assert "127.0.0.1:1 does not answer" in message


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["no-such-command"],
        ["generate"],
        ["generate", "--prompt", "a", "--prompt-file", "b"],
        ["generate", "--prompt", "a", "--max-tokens", "many"],
        ["generate", "--prompt", "a", "--mode", "moon"],
        ["generate", "--prompt", "a", "--server", "localhost:1", "--dtype", "float32"],
        ["generate", "--prompt", "a", "--server", ""],
        ["serve", "--numerics", "moon"],
        ["serve", "--index", "docs"],
        ["serve", "--index", "docs=a", "--index", "docs=b"],
        ["model"],
    ],
)
def test_wrong_usage_exits_with_2(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: refdraft" in capsys.readouterr().err


@contextmanager
def endless_answer(service: Service) -> Iterator[subprocess.Popen[str]]:
    """A process in the midst of an answer that has no end."""
    code = "import sys; from refdraft.service.cli import main; sys.exit(main())"
    arguments = ["generate", "--server", service.address, "--prompt", "endless"]
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(3) == "and"
        yield process


def test_a_reader_that_leaves_ends_it_without_a_word(service: Service) -> None:
    with endless_answer(service) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.wait(10) == 141
        assert process.stderr.read() == ""


def test_an_interrupt_ends_an_answer_without_a_word(service: Service) -> None:
    with endless_answer(service) as process:
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=10)[1] == ""
        assert process.returncode == 130


def test_an_interrupt_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr("refdraft.service.default_model.default_model_directory", interrupt)
    assert main(["model", "fetch"]) == 130


def test_a_bug_is_one_line_unless_debugging(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Path:
        raise KeyError("a bug")

    monkeypatch.setattr("refdraft.service.default_model.default_model_directory", fail)
    assert "--debug" in failure(capsys, "model", "fetch")
    with pytest.raises(KeyError):
        main(["--debug", "model", "fetch"])


def test_a_missing_extra_says_what_to_install() -> None:
    result = run_python(
        "import sys; sys.modules['torch'] = None; sys.modules['transformers'] = None\n"
        "from refdraft.service.cli import main; sys.exit(main(['generate', '--prompt', 'a', '--model', '.']))"
    )
    assert result.returncode == 1
    assert "pip install 'refdraft[serve]', or -e '.[serve]' in a checkout" in result.stderr
    assert result.stderr.count("\n") == 1


def test_help_loads_nothing_heavy() -> None:
    result = run_python(
        "import sys\nfrom refdraft.service.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print('heavy:', {'torch', 'transformers', 'faiss', 'numpy', 'grpc'} & set(sys.modules))"
    )
    assert "heavy: set()" in result.stdout
    assert "generate" in result.stdout


def test_version() -> None:
    result = run_python("from refdraft.service.cli import main; main(['--version'])")
    assert result.stdout.startswith("refdraft 0.")
