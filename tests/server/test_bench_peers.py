"""Workloads for peers: equal shapes for all, and all sides do the same work, on a tiny model."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
import torch
from transformers import AutoModelForCausalLM

from lmprog_runtime.bench import peers
from lmprog_runtime.bench.hf_side import Transformers
from lmprog_runtime.bench.sides import Endpoint, Ours, Side
from lmprog_runtime.bench.workloads import Workload, make_workloads
from lmprog_runtime.errors import EngineFailed, RequestRefused
from tests.support import tiny_server
from tests.support.byte_tokenizer import VOCAB
from tests.support.tiny_engine import TINY_VOCAB, TOKENIZER
from tests.support.tiny_server import Served

SMALL = {work.name: work._replace(new_tokens=min(6, work.new_tokens)) for work in make_workloads(TOKENIZER, 3, 0.02)}
GENERATED = ["few-shot", "chat", "fork", "one stream", "batch of 16"]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with tiny_server.serving() as running:
        yield running


@pytest.fixture(scope="module")
def model(served: Served) -> Any:
    """Rows that no token uses are hidden, as the engine hides them, so that both share out probability alike."""
    found = AutoModelForCausalLM.from_pretrained(served.runtime.files.directory, dtype=torch.float32).eval()
    unused = torch.arange(VOCAB, TINY_VOCAB)
    found.lm_head.register_forward_hook(lambda module, given, logits: logits.index_fill(-1, unused, -torch.inf))
    return found


def side(name: str, served: Served, model: Any) -> Side:
    if name == "ours":
        return Ours(served.runtime)
    if name == "endpoint":
        return Endpoint("ours over HTTP", served.url, "tiny", TOKENIZER, None)
    return Transformers(model, 3, reuses=name == "reuse")


def test_shapes_at_full_scale() -> None:
    made = {work.name: work for work in make_workloads(TOKENIZER, 1, 1.0)}
    shapes = {name: (len(work.prompts), {len(p) for p in work.prompts}, work.new_tokens) for name, work in made.items()}
    assert shapes["few-shot"] == (64, {1040}, 16)
    assert shapes["choices"] == (32, {530}, 0)
    assert shapes["chat"] == (8, {100}, 32)
    assert shapes["fork"] == (16, {804}, 64)
    assert shapes["one stream"] == (1, {128}, 128)
    assert shapes["batch of 16"] == (16, {128}, 128)
    assert shapes["JSON extraction"][0] == 32
    assert shapes["JSON extraction"][2] == 96
    assert [len(turns) for turns in made["chat"].later_turns or []] == [3] * 8
    assert {len(choice) for some in made["choices"].choices or [] for choice in some} == {6}


@pytest.mark.parametrize("work", SMALL.values(), ids=SMALL)
def test_all_prompts_of_a_workload_have_one_length_and_share_their_beginning(work: Workload) -> None:
    assert len({len(prompt) for prompt in work.prompts}) == 1
    assert len({tuple(prompt[: work.shared_len]) for prompt in work.prompts}) == 1
    assert work.shared_len < len(work.prompts[0])


def test_another_seed_shares_nothing() -> None:
    first, second = (make_workloads(TOKENIZER, seed, 0.1)[0] for seed in (1, 2))
    assert first.prompts[0][:10] != second.prompts[0][:10]


@pytest.mark.parametrize("name", ["ours", "endpoint", "plain", "reuse"])
@pytest.mark.parametrize("work", GENERATED)
def test_every_answer_has_its_length(served: Served, model: Any, name: str, work: str) -> None:
    done = side(name, served, model).run(SMALL[work])
    if name == "reuse" and work in ("one stream", "batch of 16"):
        assert done is None  # nothing to reuse
        return
    assert done is not None
    turns = 1 + len((SMALL[work].later_turns or [[]])[0])
    assert done.output_lens == [6] * (len(SMALL[work].prompts) * turns)


@pytest.mark.parametrize("name", ["endpoint", "plain", "reuse"])
def test_all_sides_score_choices_alike(served: Served, model: Any, name: str) -> None:
    work = SMALL["choices"]
    wanted = side("ours", served, model).run(work)
    done = side(name, served, model).run(work)
    assert wanted is not None
    assert done is not None
    assert np.shape(done.choice_logprobs) == (len(work.prompts), 4)
    np.testing.assert_allclose(done.choice_logprobs, wanted.choice_logprobs, atol=1e-3)


def test_reuse_generates_what_starting_over_does(served: Served, model: Any) -> None:
    """The tokens themselves, through the places where the KV of the prefix is handed on."""
    answers: dict[bool, list[Any]] = {}
    for reuses in (False, True):
        found = answers.setdefault(reuses, [])
        made = Transformers(model, 3, reuses=reuses)
        generate = made._generate
        made._generate = lambda *given, g=generate, f=found: f.append(out := g(*given)) or out  # type: ignore[func-returns-value, method-assign]
        made.run(SMALL["few-shot"])
        made.run(SMALL["chat"])
    for plain, reused in zip(answers[False], answers[True], strict=True):
        assert torch.equal(plain.sequences, reused.sequences)


def test_json_answers_are_valid_and_the_others_are_as_long(served: Served, model: Any) -> None:
    work = SMALL["JSON extraction"]._replace(new_tokens=96)
    done = Ours(served.runtime).run(work)
    assert max(done.output_lens) <= 96
    measured = work._replace(answer_lens=tuple(done.output_lens))
    plain = side("plain", served, model).run(measured)
    assert plain is not None
    assert plain.output_lens == [max(done.output_lens[:3])] * min(3, len(work.prompts))
    over_http = side("endpoint", served, model).run(measured)
    assert over_http is not None
    assert over_http.output_lens == done.output_lens


def test_a_peer_that_stops_early_is_an_error_and_not_a_win(served: Served) -> None:
    peer = Endpoint("short", served.url, "tiny", TOKENIZER, None)
    body = peer.target.body
    peer.target.body = lambda ids, length: body(ids, length - 1)  # type: ignore[method-assign]
    with pytest.raises(EngineFailed, match="instead of 6"):
        peer.run(SMALL["fork"])


class _TextOnly(BaseHTTPRequestHandler):
    """The server behind it, without token ids as prompts, without ignore_eos, without usage in streams."""

    behind: str

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        takes = self.path == "/v1/completions" and isinstance(body["prompt"], str) and not body.get("stream")
        body.pop("ignore_eos", None)
        answer = requests.post(self.behind + self.path, json=body, timeout=60) if takes else None
        self.send_response(answer.status_code if answer is not None else 422)
        self.end_headers()
        self.wfile.write(answer.content if answer is not None else b'{"error": "text only"}')

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def text_only(served: Served) -> Iterator[str]:
    handler = type("Handler", (_TextOnly,), {"behind": served.url})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_peer_that_takes_no_ids_gets_text(served: Served, text_only: str) -> None:
    peer = Endpoint("peer", text_only, "tiny", TOKENIZER, None)
    peer.choose_prompts()
    assert peer.name == "peer, prompts as text"
    for name in ("fork", "chat"):
        done, ours = peer.run(SMALL[name]), Ours(served.runtime).run(SMALL[name])
        assert done is not None
        assert done.output_lens == ours.output_lens
    prompt = TOKENIZER.encode("one and two and three")
    work = Workload("choices", [prompt], 0, choices=[[TOKENIZER.encode(", four"), [65, 66]]])
    scored = peer.run(work)
    assert scored is not None
    np.testing.assert_allclose(scored.choice_logprobs, Ours(served.runtime).run(work).choice_logprobs, atol=1e-3)


def test_a_peer_that_takes_ids_is_left_alone(served: Served) -> None:
    peer = Endpoint("peer", served.url, "tiny", TOKENIZER, None)
    peer.choose_prompts()
    assert (peer.name, peer.target.sends_text, peer.target.streams) == ("peer", False, True)


def test_a_peer_that_takes_nothing_is_an_error() -> None:
    peer = Endpoint("peer", "http://127.0.0.1:9", "tiny", TOKENIZER, None)
    with pytest.raises(EngineFailed, match=r"peer at http://127\.0\.0\.1:9 takes no completions: ConnectionError"):
        peer.choose_prompts()


def test_the_command_measures_in_turn_and_writes(
    served: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(peers.LocalRuntime, "from_config", lambda _: tiny_server.tiny_runtime())
    path = tmp_path / "peers.jsonl"
    flags = ["--scale", "0.02", "--rounds", "2", "--workloads", "fork", "choices", "--peer", f"server={served.url}"]
    assert peers.main([*flags, "--peer-model", "tiny", "--output-file", str(path), "--threads", "1"]) == 0
    result = json.loads(path.read_text())
    assert {name: set(sides) for name, sides in result["seconds"].items()} == {
        name: {"lmprog", "lmprog without guesses", "transformers", "transformers, KV reused by hand", "server"}
        for name in ("choices", "fork")
    }
    assert [len(result["accepted_guesses"][name]) for name in ("choices", "fork")] == [2, 2]
    assert result["accepted_guesses"]["choices"] == [0, 0]
    assert all(len(seconds) == 2 for sides in result["seconds"].values() for seconds in sides.values())
    shown, told = capsys.readouterr()
    lines = shown.splitlines()
    assert lines[0].split()[:2] == ["workload", "lmprog"]
    assert [line.partition(": lmprog ")[0] for line in told.splitlines() if line.startswith("round")] == [
        f"round {number}, {name}" for number in (1, 2) for name in ("choices", "fork")
    ]
    assert [line.split()[0] for line in lines[1:3]] == ["choices", "fork"]


def test_ratios_are_of_medians() -> None:
    seconds = {"w": {"other": [4.0, 9.0, 1.0], "lmprog": [2.0, 1.0, 50.0]}}
    assert peers.table({"seconds": seconds})[1].split() == ["w", "2.00", "s", "1.0x", "4.00", "s", "2.0x"]


def test_mistakes_are_one_sentence(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers.LocalRuntime, "from_config", lambda _: tiny_server.tiny_runtime())
    with pytest.raises(RequestRefused, match="there are few-shot"):
        peers.main(["--no-transformers", "--workloads", "few"])
    with pytest.raises(RequestRefused, match="NAME=URL"):
        peers.main(["--no-transformers", "--peer", "http"])
