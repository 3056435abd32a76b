"""The harness cases of real users: the real model, through lm-evaluation-harness and through `lmprog eval`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lmprog import Runtime
from lmprog.evaluation import evaluate
from lmprog.evaluation.formats import hellaswag
from lmprog.evaluation.task import Asking
from lmprog_runtime.runtime import LocalRuntime
from tests.support.real_model import MODEL, model_files
from tests.support.tiny_server import Served, serving

lm_eval = pytest.importorskip("lm_eval", reason="lm-eval is not installed")
pytestmark = [
    pytest.mark.model,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("default"),  # lm-eval's own code warns
]
QUESTIONS = [
    ("Which gas do plants take in", [" carbon dioxide", " helium", " neon", " iron"]),
    ("The largest planet is", [" Jupiter", " Mars", " the Moon", " Venus"]),
    ("Ice is made of", [" water", " sand", " oil", " wood"]),
    ("A triangle has three", [" sides", " wings", " wheels", " doors"]),
    ("Bees make", [" honey", " milk", " paper", " glass"]),
]
PAIRS = [(f"Question: {text}?\nAnswer:", choice) for text, choices in QUESTIONS for choice in choices]
ROWS = [{"ctx": f"Knowledge: {text}", "endings": [c[1:] for c in choices], "label": 0} for text, choices in QUESTIONS]


def instances(pairs: list[tuple[Any, ...]], kind: str = "loglikelihood") -> list[Any]:
    from lm_eval.api.instance import Instance

    return [Instance(kind, {}, pair, index) for index, pair in enumerate(pairs)]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    runtime = LocalRuntime.start(model=MODEL, dtype="float32", max_total_tokens=16384)
    with serving(runtime) as server:
        yield server


@pytest.fixture(scope="module")
def client(served: Served) -> Any:
    """lm-eval's own client of completion servers."""
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    return LocalCompletionsAPI(
        base_url=f"{served.url}/v1/completions",
        model=MODEL,
        tokenizer=str(model_files().directory),
        tokenizer_backend="huggingface",
        batch_size=4,
    )


@pytest.fixture(scope="module")
def theirs() -> Any:
    from lm_eval.models.huggingface import HFLM

    return HFLM(pretrained=str(model_files().directory), dtype="float32", batch_size=4, device="cpu")


@pytest.fixture(scope="module")
def adapter(served: Served) -> Any:
    """The `lmprog` model of lm-eval over the same loaded weights."""
    from lmprog_runtime.harness.lm_eval_model import LmprogModel

    return LmprogModel.over(served.runtime)


def test_h01_completion_server_scores_as_transformers_does(client: Any, theirs: Any) -> None:
    """20 items through lm-eval's local-completions client: echo, logprobs, id lists, several prompts per request."""
    found, wanted = (model.loglikelihood(instances(PAIRS), disable_tqdm=True) for model in (client, theirs))
    assert [value for value, _ in found] == pytest.approx([value for value, _ in wanted], abs=1e-3)
    assert [greedy for _, greedy in found] == [greedy for _, greedy in wanted]


def test_h02_ids_are_used_as_given_and_get_no_start_token(served: Served, adapter: Any) -> None:
    ids = served.runtime.tokenizer.encode("Two words")
    for prompt in (ids, [1, *ids]):
        answer = served.ok("/v1/completions", model=MODEL, prompt=prompt, max_tokens=1)
        assert answer["usage"]["prompt_tokens"] == len(prompt)
    text = "<|im_start|>user\nHi<|im_end|>\n"
    assert adapter.tok_encode(text).count(1) == 1
    context, continuation = adapter._encode_pair("The answer is ", "yes")
    assert served.runtime.tokenizer.decode([*context, *continuation]) == "The answer is yes"


def test_h03_prompts_of_each_mode_are_those_of_the_template(adapter: Any, theirs: Any) -> None:
    """Chat, and few-shot as turns, in lm-eval: the same text as transformers' template; one system turn."""
    chats = [
        [{"role": "user", "content": "Q1\n\nQ2"}],
        [{"role": role, "content": text} for role, text in (("user", "Q1"), ("assistant", "A1"), ("user", "Q2"))],
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Q"}],
    ]
    for chat in chats:
        text = adapter.apply_chat_template(chat)
        assert text == theirs.apply_chat_template(chat)
        assert adapter.tok_encode(text) == theirs.tok_encode(text)
        assert text.count("<|im_start|>system") == 1
        assert text.endswith("<|im_start|>assistant\n")


def test_h03_scores_of_each_style_are_apart(served: Served) -> None:
    backend = Runtime.over(served.runtime)
    styles = ("plain", "chat", "turns")
    results = [evaluate(hellaswag(ROWS), backend=backend, shots=2, asking=Asking(style)) for style in styles]
    assert [result.settings["style"] for result in results] == list(styles)
    assert len({tuple(result.records[0]["logprobs"]) for result in results}) == 3


def test_h04_generation_that_leaves_no_room_is_an_error_and_what_is_cut_is_counted(
    adapter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(adapter), "max_length", 300)
    asked = instances([("Hello", {"until": [], "max_gen_toks": adapter.max_length})], "generate_until")
    with pytest.raises(ValueError, match="leaves no room"):
        adapter.generate_until(asked, disable_tqdm=True)
    before = adapter.get_model_info()["truncated_contexts"]
    adapter.loglikelihood(instances([("word " * (adapter.max_length + 9), " end")]), disable_tqdm=True)
    assert adapter.get_model_info()["truncated_contexts"] == before + 1


def test_h07_lm_eval_can_use_the_tokenizer_of_the_server(served: Served, theirs: Any) -> None:
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    remote = LocalCompletionsAPI(
        base_url=f"{served.url}/v1/completions", model=MODEL, tokenizer_backend="remote", batch_size=4
    )
    found, wanted = (model.loglikelihood(instances(PAIRS[:4]), disable_tqdm=True) for model in (remote, theirs))
    assert [value for value, _ in found] == pytest.approx([value for value, _ in wanted], abs=1e-3)


def test_h07_results_say_what_they_were_measured_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from lmprog.eval_command import main

    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    command = ["hellaswag", "--data", str(data), "--shots", "2", "--dtype", "float32", "--threads", "1", "--quiet"]
    assert main([*command, "--output", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert all(words in printed for words in ("float32", "1 threads", "from the cache", "cold at the start"))
    noted = json.loads((tmp_path / "out" / "hellaswag.json").read_text())
    assert (noted["dtype"], noted["threads"], noted["cache_at_start"]) == ("float32", 1, "cold")
    assert noted["usage"]["cached_tokens"] > 0


def test_eval_scores_as_the_adapter_does(served: Served, adapter: Any) -> None:
    result = evaluate(hellaswag(ROWS), backend=Runtime.over(served.runtime))
    pairs = [(row["ctx"], f" {ending}") for row in ROWS for ending in row["endings"]]
    wanted = [value for value, _ in adapter.loglikelihood(instances(pairs), disable_tqdm=True)]
    found = [value for record in result.records for value in record["logprobs"]]
    assert found == pytest.approx(wanted, abs=1e-3)


def test_the_command_runs_lm_eval_with_our_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`lmprog lm-eval` takes lm_eval's options, and the model is known by its name."""
    from lmprog import cli

    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "task.yaml").write_text(
        "task: file_task\ndataset_path: json\noutput_type: multiple_choice\nvalidation_split: validation\n"
        f"dataset_kwargs:\n  data_files:\n    validation: {tmp_path / 'data.jsonl'}\n"
        "doc_to_text: '{{ctx}}'\ndoc_to_target: '{{label}}'\ndoc_to_choice: '{{endings}}'\n"
        "metric_list:\n  - metric: acc\n"
    )
    given = ["--model", "lmprog", "--model_args", f"pretrained={MODEL},max_total_tokens=4096"]
    assert cli.main(["lm-eval", *given, "--tasks", "file_task", "--include_path", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "lmprog" in printed
    assert "|acc" in printed.replace(" ", "")
