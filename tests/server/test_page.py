"""The web page, in a real headless Chromium. Skipped where there is none."""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.tiny_server import ASCII_ONLY, Served, eventually, serving, tiny_runtime

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --window-size=1440,1050"
)
SHOTS = os.environ.get("LMPROG_SCREENSHOTS")


@contextmanager
def _browser(profile: Path) -> Iterator[Any]:
    selenium = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    if not (CHROMIUM and DRIVER):
        pytest.skip("chromium and chromedriver are not installed")
    options = selenium.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in [*FLAGS.split(), f"--user-data-dir={profile}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = selenium.Chrome(options=options, service=selenium.ChromeService(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Any]]:
    with _browser(tmp_path_factory.mktemp("chromium")) as driver, serving(show_cache_text=True) as server:
        driver.get(server.url)
        yield server, driver


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Any]]:
    """The page of a server that asks for a key, runs one request at a time and computes a few tokens in a step."""
    runtime = tiny_runtime(max_running=1, step_tokens=16)
    with _browser(tmp_path_factory.mktemp("chromium")) as driver, serving(runtime, api_key="a-key") as server:
        driver.get(server.url)
        yield server, driver


def _text(driver, element: str) -> str:
    return driver.find_element("id", element).text


def _node(driver, kind: str, text: str = "") -> bool:
    """Whether the drawn tree has a node of a kind (classes) whose title has a text. It is drawn anew every second."""
    script = "return [...document.querySelectorAll('#tree .node' + arguments[0])].map(n => n.textContent)"
    return any(text in found for found in driver.execute_script(script, kind))


def _type(driver, element: str, text: str) -> None:
    field = driver.find_element("id", element)
    field.clear()
    field.send_keys(text)


def _run(driver) -> None:
    driver.find_element("id", "run").click()
    eventually(lambda: driver.find_element("id", "run").is_enabled(), 30)


def test_a_completion_streams_and_the_second_one_is_cached(page) -> None:
    _, driver = page
    eventually(lambda: _text(driver, "health") == "healthy")
    assert _text(driver, "model") == "tiny"
    assert "Nothing is cached" in _text(driver, "tree")
    driver.find_element("id", "mode-text").click()
    _type(driver, "prompt", "A prompt from a browser")
    _type(driver, "max-tokens", "12")
    _run(driver)
    assert "23 prompt tokens: 0 cached" in _text(driver, "usage-text")
    assert re.search(r"\. ([1-9]|1[0-2]) generated\.$", _text(driver, "usage-text"))
    eventually(lambda: "nodes" in _text(driver, "tree-count") and "0 nodes" not in _text(driver, "tree-count"))
    assert driver.find_elements("css selector", "#tree .node")
    _run(driver)
    assert "22 cached, 1 computed" in _text(driver, "usage-text")
    eventually(lambda: _text(driver, "t-hits") not in {"–", "0%"})


def test_a_schema_is_followed(page) -> None:
    _, driver = page
    driver.find_element("css selector", "summary").click()
    _type(driver, "schema", '{"enum": ["yes", "no"]}')
    _run(driver)
    assert driver.find_elements("css selector", ".turn.assistant span")[-1].text in {'"yes"', '"no"'}
    _type(driver, "schema", "{no json")
    driver.find_element("id", "run").click()
    eventually(lambda: "not JSON" in _text(driver, "conversation"))
    _type(driver, "schema", " ")


def test_the_cache_is_explained(page) -> None:
    _, driver = page
    _type(driver, "prompt", "A prompt from a browser, and more")
    driver.find_element("id", "explain").click()
    eventually(lambda: "tokens are cached" in _text(driver, "explained"))
    assert "23 of 33 tokens are cached" in _text(driver, "explained")
    assert len(driver.find_elements("css selector", ".tokens .hit")) == 23
    assert len(driver.find_elements("css selector", ".tokens .miss")) == 10


def test_chat_keeps_its_turns_and_mistakes_are_shown(page) -> None:
    _, driver = page
    driver.find_element("id", "mode-chat").click()
    _type(driver, "prompt", "hello")
    _run(driver)
    _type(driver, "prompt", "and again")
    _run(driver)
    cached = int(_text(driver, "usage-text").split(": ")[1].split(" cached")[0])
    assert cached > 60, "the first turns were not computed again"
    _type(driver, "prompt", "x")
    _type(driver, "max-tokens", "99999")
    _run(driver)
    assert "4096" in driver.find_elements("css selector", ".turn.error")[-1].text
    _type(driver, "max-tokens", "12")


def test_stopping_aborts_the_request(page) -> None:
    server, driver = page
    driver.find_element("id", "mode-text").click()
    _type(driver, "prompt", "endless")
    _type(driver, "max-tokens", "3900")
    driver.find_element("id", "run").click()
    eventually(lambda: server.state.running == 1)
    eventually(lambda: _text(driver, "t-running") == "1")
    driver.find_element("id", "stop").click()
    eventually(lambda: server.state.running == 0)
    server.comes_to_rest()


def test_the_tree_is_hotter_where_it_is_hit_more(page: Any) -> None:
    server, driver = page
    server.http.post("/flush_cache")
    for prompt in ["a cold prompt", *["the hot prompt"] * 17]:
        server.ok("/v1/completions", model="tiny", prompt=prompt, max_tokens=1)
    eventually(lambda: _node(driver, ".heat5", "the hot promp"), 30)
    assert _node(driver, ".heat1", "a cold prompt")
    assert not _node(driver, ".heat5", "a cold prompt")


def test_nothing_leaves_the_server_and_nothing_fails(page) -> None:
    server, driver = page
    eventually(lambda: driver.find_elements("css selector", "#h-e2e .column"))
    if SHOTS:
        Path(SHOTS).mkdir(parents=True, exist_ok=True)
        driver.save_screenshot(f"{SHOTS}/page.png")
    sent = [
        entry["message"] for entry in driver.get_log("performance") if 'Network.requestWillBeSent"' in entry["message"]
    ]
    requested = [message for message in sent if "://new-tab-page" not in message]
    assert requested
    for message in requested:
        assert f'"url":"{server.url}' in message or '"url":"data:' in message
    problems = [e["message"] for e in driver.get_log("browser") if e["level"] == "SEVERE" and "400" not in e["message"]]
    assert problems == []


def test_the_key_that_is_typed_opens_the_page(narrow: Any) -> None:
    _, driver = narrow
    eventually(lambda: "key" in _text(driver, "notice"), 30)
    assert _text(driver, "model") == ""
    for key, is_right in (("another-key", False), ("a-key", True)):
        _type(driver, "key", key)
        driver.find_element("id", "prompt").click()  # the field has changed when it is left
        eventually(lambda: bool(_text(driver, "model")) == is_right, 30)  # noqa: B023
    eventually(lambda: not driver.find_element("id", "notice").is_displayed(), 30)
    driver.find_element("id", "mode-text").click()
    _type(driver, "prompt", "with a key")
    _type(driver, "max-tokens", "3")
    _run(driver)
    assert "10 prompt tokens" in _text(driver, "usage-text")
    driver.refresh()
    eventually(lambda: _text(driver, "model") == "tiny", 30)


class _Slow:
    """The model's step after a pause, which can be cut short."""

    def __init__(self, step: Any) -> None:
        self._step, self.seconds, self.go_on = step, 0.25, threading.Event()

    def __call__(self, batch: Any) -> Any:
        self.go_on.wait(self.seconds)
        return self._step(batch)


def test_what_goes_on_is_shown_while_it_does(narrow: Any) -> None:
    """A long prompt being computed and another request waiting for it; then tokens being generated."""
    server, driver = narrow
    eventually(lambda: _text(driver, "model") == "tiny", 30)
    executor = server.runtime.executor
    step = executor.step
    executor.step = slow = _Slow(step)
    bodies = [{"prompt": "".join(chr(65 + i % 50) for i in range(3000)), "max_tokens": 1000}, {"prompt": "b"}]
    fields = [{"model": "tiny", "logit_bias": ASCII_ONLY, **body} for body in bodies]
    threads = [threading.Thread(target=server.post, args=("/v1/completions",), kwargs=body) for body in fields]
    try:
        for number, thread in enumerate(threads):
            thread.start()
            eventually(lambda: server.state.running == number + 1, 30)  # noqa: B023
        eventually(lambda: _text(driver, "t-running") == _text(driver, "t-waiting") == "1", 30)
        eventually(lambda: _node(driver, ".computing.locked"), 60)
        slow.seconds = 0.01
        eventually(lambda: int(_text(driver, "t-speed").replace("–", "0")) > 0, 60)
        eventually(lambda: _node(driver, ".locked") and not _node(driver, ".computing"), 60)
    finally:
        slow.go_on.set()
        server.state.stop_all()
        for thread in threads:
            thread.join(30)
        executor.step = step
    eventually(lambda: _text(driver, "t-running") == _text(driver, "t-waiting") == "0", 30)
    eventually(lambda: driver.find_elements("css selector", "#tree .node") and not _node(driver, ".locked"), 30)
    assert _text(driver, "t-pool") not in {"–", "0%"}


def test_a_program_between_two_requests_is_seen_in_the_tree(narrow: Any) -> None:
    server, driver = narrow
    eventually(lambda: _text(driver, "model") == "tiny", 30)
    server.ok("/generate", text="held by a program", sampling_params={"max_new_tokens": 1}, stream_id="me")
    eventually(lambda: _node(driver, ".leased"), 30)
    server.ok("/close_streams", streams=[{"stream_id": "me"}])
    eventually(lambda: not _node(driver, ".leased"), 30)


def test_the_page_works_with_a_key() -> None:
    with serving(api_key="k") as server:
        for path in ("/", "/page/app.js", "/page/charts.js", "/page/style.css"):
            answer = httpx.get(server.url + path)
            assert answer.status_code == 200
            assert "default-src 'self'" in answer.headers["content-security-policy"]
            assert "http://" not in answer.text.replace("http://www.w3.org/2000/svg", "")
            assert "https://" not in answer.text
