"""Flags of `lmprog bench serving`, and the data set and target that they describe. Names follow SGLang's."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Hashable
from pathlib import Path
from typing import Any

from lmprog_runtime.bench import dataset_files, datasets
from lmprog_runtime.bench.conversation import Conversation
from lmprog_runtime.bench.load import Load
from lmprog_runtime.bench.runtime_flags import add_runtime_flags, runtime_config
from lmprog_runtime.bench.targets import SERVERS, Server, server_class
from lmprog_runtime.errors import RequestRefused
from lmprog_runtime.model.tokenizer import Tokenizer

DATASETS = ("random", "sharegpt", "custom", "generated-shared-prefix", "multi-turn", "shared-prefix")

_DESCRIPTION = (
    "Measure serving, as SGLang's bench_serving does. The default, 100 requests of 1,024 tokens in and 128 out, takes "
    "some minutes on 2 cores; generated-shared-prefix is 1,024 requests unless --gsp-num-groups and "
    "--gsp-prompts-per-group say less; --scale shortens all of them."
)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="lmprog bench serving", description=_DESCRIPTION)
    made.add_argument("--backend", default=None, help=f"in-process (default without a URL), {', '.join(SERVERS)}")
    made.add_argument("--base-url", help="of a running server, such as http://127.0.0.1:30000")
    made.add_argument("--served-model-name", help="what requests call the model; default: --model")
    made.add_argument("--server-pid", type=int, help="process whose peak memory is shown")
    made.add_argument("--send-text", action="store_true", help="send prompts as text, for servers that take no ids")
    made.add_argument("--extra-request-body", type=json.loads, default={}, metavar="JSON", help="more request fields")
    _add_load(made)
    _add_data(made)
    _add_output(made)
    add_runtime_flags(made)
    return made


def _add_load(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("load")
    group.add_argument(
        "--request-rate", type=float, default=float("inf"), help="per second (Poisson); inf: all at once"
    )
    group.add_argument("--max-concurrency", type=int, help="most requests under way")
    group.add_argument("--warmup-requests", type=int, default=1, help="sent before, and not counted")
    group.add_argument("--flush-cache", action=argparse.BooleanOptionalAction, default=True, help="start cold")
    group.add_argument("--disable-ignore-eos", action="store_true", help="let answers end before their length")
    group.add_argument("--seed", type=int, default=1)


def _add_data(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("data set")
    group.add_argument("--dataset-name", choices=DATASETS, default="random")
    group.add_argument("--dataset-path", type=Path, help="file for sharegpt, custom and shared-prefix")
    group.add_argument("--num-prompts", type=int, default=100)
    group.add_argument("--scale", type=float, default=1.0, help="multiplies all lengths that are made by seed")
    group.add_argument("--random-input-len", type=int, default=1024)
    group.add_argument("--random-output-len", type=int, default=128)
    group.add_argument("--random-range-ratio", type=float, default=0.0, help="shortest length over longest")
    group.add_argument("--output-len", type=int, help="of every answer, for files")
    group.add_argument("--sharegpt-context-len", type=int, default=2048, help="longest question and answer together")
    group.add_argument("--gsp-num-groups", type=int, default=64)
    group.add_argument("--gsp-prompts-per-group", type=int, default=16)
    group.add_argument("--gsp-system-prompt-len", type=int, default=2048)
    group.add_argument("--gsp-question-len", type=int, default=128)
    group.add_argument("--gsp-output-len", type=int, default=256)
    group.add_argument("--gsp-zipf", type=float, help="draw groups with probability 1/rank**this")
    group.add_argument("--turns", type=int, default=4, help="of multi-turn; each has random-input-len / turns tokens")


def _add_output(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("output")
    group.add_argument("--output-file", type=Path, help="JSON Lines; results are appended")
    group.add_argument("--output-details", action="store_true", help="with the numbers of each request")
    group.add_argument("--tag", help="a name for this run")
    group.add_argument("--disable-tqdm", action="store_true")
    group.add_argument(
        "--compare", nargs="...", metavar="FLAGS", help="last of all: settings to run in turn, each as quoted flags"
    )
    group.add_argument("--rounds", type=int, default=3, help="of --compare")


def split_compare(given: list[str]) -> tuple[list[str], list[str]]:
    """(common flags, settings): each argument after --compare is a setting. argparse would read it as a flag."""
    if "--compare" not in given:
        return given, []
    at = given.index("--compare")
    settings = given[at + 1 :]
    if len(settings) < 2:
        raise RequestRefused('--compare needs two or more settings, such as --compare "" "--disable-radix-cache".')
    return given[:at], settings


def load_of(options: argparse.Namespace) -> Load:
    if options.request_rate <= 0:
        raise RequestRefused(f"--request-rate is {options.request_rate}; it must be above 0.")
    if options.max_concurrency is not None and options.max_concurrency < 1:
        raise RequestRefused(f"--max-concurrency is {options.max_concurrency}; it must be at least 1.")
    return Load(options.request_rate, options.max_concurrency, options.seed)


def target_key(options: argparse.Namespace) -> Hashable:
    """Equal for flags that describe the same target."""
    names = ("backend", "base_url", "served_model_name", "server_pid", "send_text", "disable_ignore_eos")
    more = json.dumps(options.extra_request_body, sort_keys=True)
    return (*(getattr(options, name) for name in names), more, runtime_config(options))


def server_of(options: argparse.Namespace, tokenizer: Tokenizer) -> Server:
    server = server_class(options.backend or "lmprog")(
        options.base_url,
        options.served_model_name or options.model,
        tokenizer,
        key=os.environ.get("LMPROG_API_KEY"),
        pid=options.server_pid,
    )
    server.ignore_eos, server.sends_text = not options.disable_ignore_eos, options.send_text
    server.extra = options.extra_request_body
    return server


def conversations_of(options: argparse.Namespace, tokenizer: Tokenizer) -> list[Conversation]:
    """The data set that the flags describe."""
    source = datasets.TokenSource(tokenizer, options.seed)
    if options.dataset_name in ("sharegpt", "custom", "shared-prefix"):
        return _from_file(options, tokenizer, source)
    return _from_seed(options, source)


def _from_file(options: argparse.Namespace, tokenizer: Tokenizer, source: datasets.TokenSource) -> list[Conversation]:
    path, count = options.dataset_path, options.num_prompts
    if path is None:
        raise RequestRefused(f"--dataset-name {options.dataset_name} needs --dataset-path.")
    wanted = options.output_len
    if options.dataset_name == "sharegpt":
        longest = options.sharegpt_context_len
        return dataset_files.sharegpt(path, tokenizer, source, count, output_len=wanted, context_len=longest)
    read: Any = dataset_files.custom if options.dataset_name == "custom" else dataset_files.shared_prefix_file
    found: list[Conversation] = read(path, tokenizer, count, output_len=wanted)
    return found


def _from_seed(options: argparse.Namespace, source: datasets.TokenSource) -> list[Conversation]:
    def scaled(length: int) -> int:
        return max(1, int(length * options.scale))

    inputs, outputs = scaled(options.random_input_len), scaled(options.random_output_len)
    if options.dataset_name == "random":
        ratio = options.random_range_ratio
        return datasets.random_requests(source, options.num_prompts, input_len=inputs, output_len=outputs, ratio=ratio)
    if options.dataset_name == "multi-turn":
        each = max(1, inputs // options.turns)
        count = max(1, options.num_prompts // options.turns)
        return datasets.multi_turn(
            source, count, turns=options.turns, system_len=each, turn_len=each, output_len=outputs
        )
    lengths = (options.gsp_system_prompt_len, options.gsp_question_len, options.gsp_output_len)
    return datasets.shared_prefixes(
        source,
        groups=options.gsp_num_groups,
        per_group=options.gsp_prompts_per_group,
        lengths=(scaled(lengths[0]), scaled(lengths[1]), scaled(lengths[2])),
        zipf=options.gsp_zipf,
    )
