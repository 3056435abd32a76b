"""The web page, in a real headless Chromium. Skipped where there is none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.tiny_server import Served, eventually, serving

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --window-size=1440,1050"
)
SHOTS = os.environ.get("LMPROG_SCREENSHOTS")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, object]]:
    selenium = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    if not (CHROMIUM and DRIVER):
        pytest.skip("chromium and chromedriver are not installed")
    options = selenium.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in [*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = selenium.Chrome(options=options, service=selenium.ChromeService(DRIVER))
    try:
        with serving(show_cache_text=True) as server:
            driver.get(server.url)
            yield server, driver
    finally:
        driver.quit()


def _text(driver, element: str) -> str:
    return driver.find_element("id", element).text


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
    assert "12 generated" in _text(driver, "usage-text") or "generated" in _text(driver, "usage-text")
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


def test_the_page_works_with_a_key() -> None:
    with serving(api_key="k") as server:
        for path in ("/", "/page/app.js", "/page/charts.js", "/page/style.css"):
            answer = httpx.get(server.url + path)
            assert answer.status_code == 200
            assert "default-src 'self'" in answer.headers["content-security-policy"]
            assert "http://" not in answer.text.replace("http://www.w3.org/2000/svg", "")
            assert "https://" not in answer.text
