"""Data sets of the serving benchmark: lengths, sharing, seeds, files and their mistakes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from lmprog_runtime.bench import dataset_files, datasets
from lmprog_runtime.bench.compare import Setting, compare, comparison_lines
from lmprog_runtime.bench.conversation import Conversation
from lmprog_runtime.bench.load import Load, gaps
from lmprog_runtime.bench.runtime_flags import runtime_config
from lmprog_runtime.bench.serving_flags import conversations_of, parser, split_compare, target_key
from lmprog_runtime.config import RuntimeConfig
from lmprog_runtime.errors import RequestRefused
from tests.support.byte_tokenizer import make_byte_tokenizer

TOKENIZER = make_byte_tokenizer()


def source(seed: int = 1) -> datasets.TokenSource:
    return datasets.TokenSource(TOKENIZER, seed)


def total_input(conversations: Sequence[Conversation]) -> int:
    """Tokens of all prompts, answers of earlier turns at their full length."""
    total = 0
    for conversation in conversations:
        length = 0
        for turn in conversation.turns:
            length += len(turn.token_ids)
            total += length
            length += turn.output_len
    return total


def test_random_lengths_lie_in_their_range_and_repeat_by_seed() -> None:
    made = [datasets.random_requests(source(seed), 200, input_len=20, output_len=8, ratio=0.5) for seed in (1, 1, 2)]
    assert made[0] == made[1] != made[2]
    turns = [conversation.turns[0] for conversation in made[0]]
    assert {len(turn.token_ids) for turn in turns} == set(range(10, 21))
    assert {turn.output_len for turn in turns} == set(range(4, 9))


def test_random_tokens_are_plain_text() -> None:
    ids = source().ids(500)
    assert TOKENIZER.encode(TOKENIZER.decode_bytes(ids).decode("ascii")) == ids


def test_groups_share_exactly_their_system_prompt() -> None:
    made = datasets.shared_prefixes(source(), groups=5, per_group=4, lengths=(30, 7, 3), zipf=None)
    prompts = [conversation.turns[0].token_ids for conversation in made]
    assert Counter(prompt[:30] for prompt in prompts).most_common()[0][1] == 4
    assert len({prompt[:30] for prompt in prompts}) == 5
    assert len(set(prompts)) == 20
    assert {len(prompt) for prompt in prompts} == {37}


def test_zipf_draws_the_first_groups_most() -> None:
    order = Counter(datasets.group_order(np.random.default_rng(1), 8, 500, 1.0))
    share = 1 / sum(1 / rank for rank in range(1, 9))
    assert order[0] / 4000 == pytest.approx(share, abs=0.04)
    assert order[0] > 1.5 * order[1] > order[7]


def test_conversations_begin_with_one_system_prompt() -> None:
    made = datasets.multi_turn(source(), 3, turns=2, system_len=6, turn_len=4, output_len=5)
    assert len({conversation.turns[0].token_ids[:6] for conversation in made}) == 1
    assert [[len(turn.token_ids) for turn in conversation.turns] for conversation in made] == [[10, 4]] * 3
    assert total_input(made) == 3 * (10 + (10 + 5 + 4))


def test_sharegpt_leaves_out_what_is_short_long_or_unanswered(tmp_path: Path) -> None:
    def entry(*texts: str) -> dict[str, object]:
        return {"conversations": [{"from": "x", "value": text} for text in texts]}

    path = tmp_path / "share.json"
    path.write_text(
        json.dumps([entry("a" * 10, "b" * 6), entry("a", "bbbbbb"), entry("only"), entry("c" * 90, "d" * 20)])
    )
    made = dataset_files.sharegpt(path, TOKENIZER, source(), 10, output_len=None, context_len=100)
    assert [(len(c.turns[0].token_ids), c.turns[0].output_len) for c in made] == [(10, 6)]
    with pytest.raises(RequestRefused, match="no request that can be used"):
        dataset_files.sharegpt(path, TOKENIZER, source(), 10, output_len=None, context_len=5)


def test_custom_lines_give_text_or_ids_and_name_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('{"prompt": "abc", "output_len": 2}\n\n{"prompt": [5, 6]}\n{"text": 1}\n')
    made = dataset_files.custom(path, TOKENIZER, 2, output_len=9)
    assert [(list(c.turns[0].token_ids), c.turns[0].output_len) for c in made] == [
        (TOKENIZER.encode("abc"), 2),
        ([5, 6], 9),
    ]
    with pytest.raises(RequestRefused, match="line 4"):
        dataset_files.custom(path, TOKENIZER, 9, output_len=None)


def test_a_workload_file_shares_system_tools_and_examples(tmp_path: Path) -> None:
    path = tmp_path / "work.json"
    example = {"question": "2+2?", "answer": "4"}
    work = {"system": "Be short.", "tools": [{"name": "add"}], "examples": [example], "questions": ["a?", "b?"]}
    path.write_text(json.dumps(work))
    made = dataset_files.shared_prefix_file(path, TOKENIZER, 3, output_len=None)
    texts = [TOKENIZER.decode_bytes(c.turns[0].token_ids).decode() for c in made]
    shared = 'Be short.\n\nTools:\n{"name": "add"}\n\nQuestion: 2+2?\nAnswer: 4\n\n'
    assert texts == [shared + f"Question: {name}?\nAnswer:" for name in "aba"]
    assert {c.turns[0].output_len for c in made} == {64}


def test_starts_are_a_poisson_process() -> None:
    found = gaps(Load(request_rate=4.0, seed=3), 4000)
    assert np.mean(found) == pytest.approx(0.25, rel=0.05)
    assert np.std(found) == pytest.approx(0.25, rel=0.1)
    assert gaps(Load(), 3) == [0.0] * 3


@pytest.mark.parametrize("name", ["random", "multi-turn", "generated-shared-prefix"])
def test_scale_shortens_every_made_data_set(name: str) -> None:
    flags = ["--dataset-name", name, "--num-prompts", "8", "--gsp-num-groups", "2", "--gsp-prompts-per-group", "2"]
    sizes = [
        total_input(conversations_of(parser().parse_args([*flags, "--scale", scale]), TOKENIZER))
        for scale in ("1", "0.25")
    ]
    assert sizes[1] < 0.5 * sizes[0]


def test_a_file_data_set_needs_its_file() -> None:
    with pytest.raises(RequestRefused, match="--dataset-path"):
        conversations_of(parser().parse_args(["--dataset-name", "custom"]), TOKENIZER)


def test_flags_give_the_settings_of_the_runtime() -> None:
    assert runtime_config(parser().parse_args([])) == RuntimeConfig()
    given = ["--disable-radix-cache", "--threads", "2", "--dtype", "int8", "--executor", "torch"]
    wanted = RuntimeConfig(disable_radix_cache=True, threads=2, dtype="int8", executor="torch")
    assert runtime_config(parser().parse_args(given)) == wanted


def test_settings_take_turns_and_later_flags_win() -> None:
    seen: list[str] = []

    def measure(label: str) -> dict[str, object]:
        seen.append(label)
        return {"duration": 4.0 if label == "a" else 2.0}

    runs = compare([("a", lambda: measure("a")), ("b", lambda: measure("b"))], 3)
    assert seen == ["a", "b", "b", "a", "a", "b"]
    assert [len(results) for results in runs.values()] == [3, 3]
    setting = Setting.parse("--seed 5", ["--seed", "4"], parser())
    assert (setting.label, setting.options.seed) == ("--seed 5", 5)
    assert Setting.parse("", [], parser()).label == "as given"


def test_flags_after_compare_are_settings_and_not_flags() -> None:
    given = ["--seed", "3", "--compare", "", "--disable-radix-cache"]
    assert split_compare(given) == (["--seed", "3"], ["", "--disable-radix-cache"])
    assert split_compare(["--seed", "3"]) == (["--seed", "3"], [])
    with pytest.raises(RequestRefused, match="two or more"):
        split_compare(["--compare", "--disable-radix-cache"])


def test_settings_that_differ_in_their_load_share_a_target() -> None:
    def key(*flags: str) -> object:
        return target_key(parser().parse_args(flags))

    assert key() == key("--max-concurrency", "3", "--seed", "9") == key("--dtype", "auto")
    others = [["--disable-radix-cache"], ["--base-url", "http://a"], ["--extra-request-body", "{}", "--send-text"]]
    assert len({key(), *(key(*flags) for flags in others)}) == 4


def test_comparison_shows_ratios_to_the_first() -> None:
    from lmprog_runtime.bench.compare import COMPARED

    def result(value: float | None) -> dict[str, float | None]:
        return {key: value for key, _ in COMPARED}

    lines = comparison_lines({"a": [result(2.0), result(4.0), result(9.0)], "b": [result(1.0)], "c": [result(None)]})
    assert "a" in lines[0]
    assert lines[1].split()[-5:] == ["4.00", "1.00", "n/a", "0.25x", "n/a"]
