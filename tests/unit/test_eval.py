"""Evaluation: metrics as lm-evaluation-harness defines them, prompts, order, resume, honest failure."""

from __future__ import annotations

import contextlib
import csv
import json
import math
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import lmprog
from lmprog import PromptTooLong, ScriptedBackend, ScriptedCall, State, eval_command
from lmprog.evaluation import Estimate, Generation, MultipleChoice, Outcome, Task, evaluate
from lmprog.evaluation.data import load_items
from lmprog.evaluation.formats import gsm8k, hellaswag
from lmprog.evaluation.metrics import choice_metrics, estimate, pass_at_k
from lmprog.evaluation.records import RecordFile
from lmprog.evaluation.task import Asking
from tests.support.language import no_threads_left

CAPITALS = [
    {"country": "France", "options": ["Paris", "Rome", "Bonn"], "answer": 0},
    {"country": "Italy", "options": ["Paris", "Rome", "Bonn"], "answer": 1},
    {"country": "Peru", "options": ["Lima", "Rome", "Bonn"], "answer": 0},
    {"country": "Japan", "options": ["Kyoto", "Osaka", "Tokyo"], "answer": 2},
]


def capitals(data: Any = CAPITALS, **more: Any) -> MultipleChoice:
    settings = {
        "name": "capitals",
        "question": "The capital of {country} is",
        "choices": lambda item: item["options"],
        "target": lambda item: item["answer"],
    }
    return MultipleChoice(data=data, **{**settings, **more})


def sums(call: ScriptedCall) -> dict[str, float]:
    """A different number for each pair of prompt and choice."""
    return {choice: -(sum((call.prompt + choice).encode()) % 97) - 1.0 for choice in call.choices}


def questions(count: int) -> list[dict[str, Any]]:
    return [{"question": f"What is {n} + {n}?", "answer": f"Twice {n}.\n#### {2 * n}"} for n in range(count)]


# -- metrics ------------------------------------------------------------------------------------------------------


def test_length_normalised_accuracies() -> None:
    found = choice_metrics([-6.0, -7.0, -7.5], ["ab", "abcdef", "éééé"], target=1)
    assert found == {"acc": 0.0, "acc_norm": 1.0, "acc_bytes": 0.0}


def test_an_empty_choice_loses_by_length() -> None:
    assert choice_metrics([0.0, -5.0], ["", "ab"], target=1) == {"acc": 0.0, "acc_norm": 1.0, "acc_bytes": 1.0}


def test_metrics_are_those_of_lm_eval() -> None:
    """The same numbers through lm-eval's own task object, on random scores."""
    pytest.importorskip("lm_eval", reason="lm-eval is not installed")
    from lm_eval.api.task import MultipleChoiceTask

    source = random.Random(3)
    for _ in range(200):
        choices = ["x" * source.randint(1, 9) + source.choice(["", "é", "日本"]) for _ in range(4)]
        logprobs = [-source.random() * 9 for _ in choices]
        doc = {"gold": source.randrange(4), "choices": choices}
        wanted = MultipleChoiceTask.process_results(None, doc, [(value, False) for value in logprobs])
        found = choice_metrics(logprobs, choices, doc["gold"])
        assert {name: found[name] for name in wanted} == wanted


def test_standard_error() -> None:
    assert estimate([1.0, 0.0, 1.0, 1.0]) == Estimate(0.75, pytest.approx(0.25), 4)
    assert estimate([1.0]) == Estimate(1.0, None, 1)


def test_standard_error_is_that_of_lm_eval() -> None:
    pytest.importorskip("lm_eval", reason="lm-eval is not installed")
    from lm_eval.api.metrics import mean_stderr

    values = [random.Random(1).random() for _ in range(50)]
    assert estimate(values).stderr == pytest.approx(mean_stderr(values))


@pytest.mark.parametrize("k", [1, 2, 5])
def test_pass_at_k_is_the_share_of_subsets_with_a_right_one(k: int) -> None:
    from itertools import combinations

    right = [True, False, False, True, False]
    subsets = list(combinations(right, k))
    assert pass_at_k(5, 2, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


# -- prompts ------------------------------------------------------------------------------------------------------


def prompts(task: Task, **options: Any) -> list[str]:
    backend = ScriptedBackend(" 4", scores=sums)
    evaluate(task, backend=backend, **options)
    return sorted(call.prompt for call in backend.calls)


def test_plain_prompt_with_examples() -> None:
    task = capitals(CAPITALS[:1], shots_data=CAPITALS[1:2], description="Geography.\n\n")
    assert prompts(task, shots=1) == ["Geography.\n\nThe capital of Italy is Rome\n\nThe capital of France is"]


def test_h03_chat_modes_are_separate_and_have_no_space_before_the_answer() -> None:
    """Golden prompts of each style; the answer follows the header of the assistant's turn at once."""
    task = capitals(CAPITALS[:1], shots_data=CAPITALS[1:2], description="Geography.")
    start = "<|im_start|>system\nGeography.<|im_end|>\n<|im_start|>user\n"
    end = "The capital of France is<|im_end|>\n<|im_start|>assistant\n"
    example = "The capital of Italy is"
    assert prompts(task, shots=1, asking=Asking("chat")) == [f"{start}{example} Rome\n\n{end}"]
    as_turns = "<|im_end|>\n<|im_start|>assistant\nRome<|im_end|>\n<|im_start|>user\n"
    assert prompts(task, shots=1, asking=Asking("turns")) == [f"{start}{example}{as_turns}{end}"]
    backend = ScriptedBackend(scores=sums)
    results = [evaluate(task, backend=backend, asking=Asking(style)) for style in ("plain", "chat", "turns")]
    assert [result.settings["style"] for result in results] == ["plain", "chat", "turns"]
    assert [call.choices[0] for call in backend.calls] == [" Paris", "Paris", "Paris"]


def test_an_item_is_never_its_own_example() -> None:
    for prompt in prompts(capitals(), shots=3):
        lines = prompt.split("\n\n")
        assert len(lines) == 4
        assert not [line for line in lines[:-1] if line.startswith(lines[-1])]


def test_examples_are_shared_by_all_items_and_depend_on_the_seed() -> None:
    def examples(seed: int) -> list[str]:
        task = gsm8k(questions(6), [{**row, "question": f"Shot {row['question']}"} for row in questions(40)])
        return sorted({prompt.rpartition("\n\n")[0] for prompt in prompts(task, shots=4, shot_seed=seed)})

    assert len(examples(0)) == 1
    assert examples(0) == examples(0) != examples(1)


def test_too_few_examples_are_refused() -> None:
    with pytest.raises(lmprog.InvalidArgument, match="4 shots need as many examples"):
        evaluate(capitals(), backend=ScriptedBackend(scores=sums), shots=4)


# -- scoring ------------------------------------------------------------------------------------------------------


def test_choices_are_scored_whole_and_equal_texts_count_alike() -> None:
    rows = [{"country": "X", "options": ["a", "bb", "a"], "answer": 1}]
    scores = {" a": [-1.0, -1.0], " bb": [-1.5]}
    result = evaluate(capitals(rows), backend=ScriptedBackend(scores=lambda _: scores))
    assert result.records[0]["logprobs"] == [-2.0, -1.5, -2.0]
    assert result.metrics["acc"].value == 1.0


def test_a_target_outside_the_choices_is_a_mistake_of_the_task() -> None:
    with pytest.raises(lmprog.InvalidArgument, match="target 3 is not the index of one of 3 choices"):
        evaluate(capitals([{**CAPITALS[0], "answer": 3}]), backend=ScriptedBackend(scores=sums))


def test_generation_takes_the_last_match() -> None:
    answers = {r"0 \+ 0": " That is 0.", r"1 \+ 1": " 1 and 1 make 2, so 2", r"2 \+ 2": " five", r"3 \+ 3": " 6,000"}
    result = evaluate(gsm8k(questions(4)), backend=ScriptedBackend(answers))
    assert [record["predictions"] for record in result.records] == [["0"], ["2"], [None], ["6000"]]
    assert result.metrics["exact_match"] == Estimate(0.5, pytest.approx(math.sqrt(1 / 12)), 4)


def test_h07_samples_are_not_merged() -> None:
    backend = ScriptedBackend(lambda call: f" {call.number % 3}")
    task = Generation(
        name="thirds",
        data=[{"q": "?"}],
        question="{q}",
        answer="0",
        target=lambda _: "0",
        pass_at=(1, 2),
    )
    result = evaluate(task, backend=backend, asking=Asking(samples=6, temperature=0.7))
    assert sorted(result.records[0]["outputs"]) == [" 0", " 0", " 1", " 1", " 2", " 2"]
    assert result.metrics["exact_match"].value == pytest.approx(1 / 3)
    assert result.metrics["pass@1"].value == pytest.approx(1 / 3)
    assert result.metrics["pass@2"].value == pytest.approx(1 - 6 / 15)
    with pytest.raises(lmprog.InvalidArgument, match="pass@2 needs as many samples"):
        evaluate(task, backend=backend)


def test_a_check_decides_instead_of_the_comparison() -> None:
    task = Generation(
        name="code",
        data=[{"n": 1}, {"n": 2}],
        question="{n}",
        answer="",
        target=lambda _: "",
        check=lambda item, output: int(output) == item["n"],
    )
    result = evaluate(task, backend=ScriptedBackend({"1$": " 1", "2$": " 1"}))
    assert {name: value.value for name, value in result.metrics.items()} == {"correct": 0.5}


def test_a_task_of_ones_own_is_a_program() -> None:
    class Debate(Task):
        def ask(self, s: State, item: Mapping[str, Any], shots: Sequence[Any], asking: Asking) -> None:
            s += item["claim"]
            with s.fork(2) as sides:
                for side in sides:
                    side += lmprog.gen("view", max_tokens=3)
            s["agree"] = sides[0]["view"] == sides[1]["view"]

        def score(self, s: State, item: Mapping[str, Any]) -> Outcome:
            return Outcome({"agreement": float(s["agree"])}, {"claim": item["claim"]})

    task = Debate(name="debate", data=[{"claim": "a"}, {"claim": "b"}])
    result = evaluate(task, backend=ScriptedBackend({"a": " same", "b": lambda call: f" {call.number}"}))
    assert [record["metrics"]["agreement"] for record in result.records] == [1.0, 0.0]


# -- order, failure, resume -----------------------------------------------------------------------------------------


def test_neither_the_order_of_the_data_nor_of_the_runs_changes_a_number() -> None:
    rows = [{"country": f"C{n % 17}", "options": [f"a{n}", "b", "cc"], "answer": n % 3} for n in range(40)]
    shuffled = random.Random(5).sample(rows, len(rows))

    def numbers(data: Any, threads: int) -> tuple[Any, Any]:
        backend = ScriptedBackend(scores=sums, delay=lambda call: 0.0005 * (call.number % 3))
        result = evaluate(capitals(data), backend=backend, shots=3, num_threads=threads)
        return result.metrics, {record["key"]: record["logprobs"] for record in result.records}

    assert numbers(rows, 1) == numbers(shuffled, 1) == numbers(rows, 16)


def test_items_with_the_longest_common_beginning_are_neighbours() -> None:
    backend = ScriptedBackend(scores=sums)
    rows = [{**CAPITALS[0], "country": name} for name in ("b x", "a y", "b w", "a x")]
    evaluate(capitals(rows), backend=backend, num_threads=1)
    assert [call.prompt.removeprefix("The capital of ") for call in backend.calls] == [
        "a x is",
        "a y is",
        "b w is",
        "b x is",
    ]


def too_long_above(words: int) -> Any:
    def answer(call: ScriptedCall) -> Any:
        found = len(call.prompt.split())
        return PromptTooLong(f"{found} words do not fit {words}.") if found > words else " 4"

    return answer


def test_h04_a_prompt_that_does_not_fit_is_an_error_of_its_item() -> None:
    rows = [*questions(3), {"question": "long " * 50, "answer": "#### 1"}]
    result = evaluate(gsm8k(rows), backend=ScriptedBackend(too_long_above(20)))
    assert [record["index"] for record in result.records] == [0, 1, 2]
    assert list(result.failed) == [3]
    assert "do not fit 20" in result.failed[3]
    assert result.as_data()["failed"].keys() == {"3"}


def test_h04_whole_examples_are_dropped_and_counted() -> None:
    rows = [*questions(3), {"question": "word " * 30, "answer": "#### 1"}, {"question": "x " * 90, "answer": "#### 1"}]
    backend = ScriptedBackend(too_long_above(60))
    task = gsm8k(rows, [{**row, "question": f"Shot {row['question']}"} for row in questions(9)])
    result = evaluate(task, backend=backend, shots=4, too_long="drop-shots")
    assert [record["shots"] for record in result.records] == [4, 4, 4, 2]
    assert result.fewer_shots == 1
    assert list(result.failed) == [4], "never an empty or cut prompt"
    assert all(call.prompt.endswith("Answer:") for call in backend.calls)


def test_a_mistake_in_the_task_ends_the_evaluation_at_once() -> None:
    with no_threads_left(), pytest.raises(lmprog.InvalidArgument, match="has a field 'land'"):
        evaluate(capitals(question="{land}"), backend=ScriptedBackend(scores=sums, delay=0.001))


def test_h07_a_backend_without_scores_says_what_works() -> None:
    backend = ScriptedBackend(scores=sums, unsupported=["choice_logprobs"])
    with pytest.raises(lmprog.UnsupportedParameter, match="lmprog eval TASK --model"):
        evaluate(capitals(), backend=backend)
    assert backend.calls == []
    with pytest.raises(lmprog.UnsupportedParameter, match="score"):
        evaluate(capitals(), backend=ScriptedBackend(scores=sums, unsupported=["score"]))


def test_a_second_call_asks_nothing_and_gives_the_same(tmp_path: Path) -> None:
    path, backend = tmp_path / "deep" / "records.jsonl", ScriptedBackend(scores=sums)
    first = evaluate(capitals(), backend=backend, limit=2, records=path)
    whole = evaluate(capitals(), backend=backend, records=path)
    assert len(backend.calls) == len(CAPITALS)
    again = evaluate(capitals(list(reversed(CAPITALS))), backend=backend, records=path)
    assert len(backend.calls) == len(CAPITALS)
    assert (first.resumed, whole.resumed, again.resumed) == (0, 2, 4)
    assert again.metrics == whole.metrics == evaluate(capitals(), backend=backend).metrics
    assert eval_command.table(again)[-1] == "All 4 items were there from before; nothing was run."
    assert eval_command.table(whole)[-1].endswith("; 2 items were there from before")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == 1 + len(CAPITALS)
    assert lines[0]["key"] == "#settings"


def test_records_of_other_settings_are_refused(tmp_path: Path) -> None:
    path, backend = tmp_path / "records.jsonl", ScriptedBackend(scores=sums)
    evaluate(capitals(), backend=backend, records=path)
    with pytest.raises(lmprog.InvalidArgument, match="shots 0 became 1"):
        evaluate(capitals(), backend=backend, records=path, shots=1)


def test_a_file_of_something_else_or_in_use_is_named_as_an_evaluation_s(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text("Dear diary,\n")
    with pytest.raises(lmprog.InvalidArgument, match=r"Line 1 of .* was not written by an evaluation"):
        RecordFile(path, {})
    path.unlink()
    with (
        contextlib.closing(RecordFile(path, {})),
        pytest.raises(lmprog.InvalidArgument, match="in use by another evaluation"),
    ):
        RecordFile(path, {})
    with pytest.raises(lmprog.InvalidArgument, match="of other settings"):
        RecordFile(path, {"shots": 1})
    RecordFile(path, {}).close()


def test_kill_in_the_middle_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    path, count = tmp_path / "records.jsonl", 120
    command = [sys.executable, str(Path(__file__).parents[1] / "support" / "resumable_eval.py"), str(path), str(count)]
    for least in (10, 50):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while process.poll() is None and (not path.exists() or path.read_bytes().count(b"\n") < least):
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
    done_before = path.read_bytes().count(b"\n") - 1
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert out[:2] == [str(count), "1.0"]
    assert int(out[2]) == done_before
    records = [json.loads(line) for line in path.read_text().splitlines()][1:]
    assert sorted(record["index"] for record in records) == list(range(count))
    asked = Path(f"{path}.asked").read_text().splitlines()
    assert len(asked) <= count + 2 * 2 * 4, "only what was under way, or waited to be written, was asked again"


# -- data ---------------------------------------------------------------------------------------------------------


def test_files_of_all_formats_give_the_same_items(tmp_path: Path) -> None:
    rows = [{"q": 'a "b", c', "n": "1"}, {"q": "line\nbreak \u2028 日", "n": "2"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    (tmp_path / "a.json").write_text(json.dumps(rows))
    with (tmp_path / "a.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["q", "n"])
        writer.writeheader()
        writer.writerows(rows)
    for suffix in ("jsonl", "json", "csv"):
        assert [item.data for item in load_items(str(tmp_path / f"a.{suffix}"))] == rows
    assert len(load_items(str(tmp_path / "a.jsonl"), limit=1)) == 1


@pytest.mark.filterwarnings("default")  # other people's code warns
def test_hugging_face_datasets_from_a_local_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    datasets.Dataset.from_list(CAPITALS).save_to_disk(str(tmp_path / "saved"))
    assert [item.data for item in load_items(tmp_path / "saved")] == CAPITALS
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in CAPITALS))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    assert [item.data for item in load_items(f"hf:{folder}::train")] == CAPITALS


def _datasets(monkeypatch: pytest.MonkeyPatch, load: Callable[..., Any]) -> None:
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load))


def test_names_on_the_hub_have_a_config_and_a_split(monkeypatch: pytest.MonkeyPatch) -> None:
    _datasets(monkeypatch, lambda name, config, *, split: [{"name": name, "config": config, "split": split}])
    assert load_items("hf:owner/data:main:test")[0].data == {"name": "owner/data", "config": "main", "split": "test"}
    assert load_items("hf:owner/data::test")[0].data["config"] is None


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("Couldn't reach 'owner/data' on the Hub (LocalEntryNotFoundError)"),
        FileNotFoundError("Dataset 'owner/data' doesn't exist on the Hub or cannot be accessed.\nMore about it."),
        ValueError("Unknown split \"test\". Should be one of ['train']."),
    ],
)
def test_what_the_hub_does_not_give_is_one_sentence(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def load(*_: object, **__: object) -> None:
        raise error

    _datasets(monkeypatch, load)
    with pytest.raises(lmprog.InvalidArgument) as caught:
        load_items("hf:owner/data::test")
    said = str(error).splitlines()[0].rstrip(".")
    assert f"'hf:owner/data::test' could not be loaded: {said}." in str(caught.value)
    assert "give a file" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.jsonl", '{"a": 1}\n[1]\n', "line 2 is not an object"),
        ("a.jsonl", '{"a": 1}\n{"a"\n', "line 2 is not JSON"),
        ("a.json", '{"a": 1}', "not a list"),
        ("a.jsonl", "\n", "no items"),
        ("a.txt", "x", "is none of"),
    ],
)
def test_bad_data_is_named(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(lmprog.InvalidArgument, match=words):
        load_items(tmp_path / name)


@pytest.mark.parametrize(("source", "words"), [("nowhere.jsonl", "no file or folder"), ("hf:a/b", "not hf:")])
def test_data_that_is_not_there(source: str, words: str) -> None:
    with pytest.raises(lmprog.InvalidArgument, match=words):
        load_items(source)


def test_both_shapes_of_hellaswag() -> None:
    published = {
        "activity_label": "Roof shingle removal",
        "ctx_a": "A man is sitting on a roof.",
        "ctx_b": "he",
        "endings": [" [title] wraps [step] a  ski. ", "sings."],
        "label": "1",
    }
    plain = {"ctx": "Roof shingle removal: A man is sitting on a roof. He", "endings": ["x", "y"], "label": 1}
    task = hellaswag([published, plain])
    assert isinstance(task, MultipleChoice)
    assert task.question_text(published) == task.question_text(plain)
    assert task.choices(published) == [" wraps a ski.", "sings."], "as lm-evaluation-harness does"
    assert task.target(published) == 1
