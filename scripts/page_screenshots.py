"""Screenshots of the web page over the default model, for the docs. Needs chromium, chromedriver and selenium.

python scripts/page_screenshots.py docs/images
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx
from selenium import webdriver
from selenium.webdriver.common.by import By

from lmprog_runtime.runtime import LocalRuntime
from lmprog_runtime.server.launch import make_server
from lmprog_runtime.server.settings import ServerSettings
from lmprog_runtime.server.state import ServerState

PORT = 30123
URL = f"http://127.0.0.1:{PORT}"
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --window-size=1440,1180"
)
SUBJECTS = ("a lighthouse", "a lost key", "two old friends", "the first snow", "a talking cat")


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    runtime = LocalRuntime.start(model="smollm2-135m")
    state = ServerState(runtime, ServerSettings(port=PORT, show_cache_text=True))
    server = make_server(state)
    threading.Thread(target=server.run, daemon=True).start()
    while not state.is_warm:
        time.sleep(0.05)
    with tempfile.TemporaryDirectory() as profile:
        driver = _browser(profile)
        try:
            _take(driver, folder)
        finally:
            driver.quit()
    server.should_exit = True


def _browser(profile: str) -> webdriver.Chrome:
    options = webdriver.ChromeOptions()
    for flag in [*FLAGS.split(), f"--user-data-dir={profile}"]:
        options.add_argument(flag)
    options.binary_location = "/usr/bin/chromium"
    return webdriver.Chrome(options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))


def _take(driver: webdriver.Chrome, folder: Path) -> None:
    driver.get(URL)
    _grow_the_tree()
    _run(driver, "Name three primary colours.")
    _run(driver, "And which one is the warmest?")
    busy = [threading.Thread(target=_story, args=(subject, 200)) for subject in SUBJECTS]
    for thread in busy:
        thread.start()
    time.sleep(2.5)
    driver.find_element(By.ID, "prompt").send_keys("Why is the sky blue?")
    driver.find_element(By.ID, "explain").click()
    time.sleep(1.5)
    driver.save_screenshot(str(folder / "page.png"))
    driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    )
    time.sleep(1.2)
    driver.save_screenshot(str(folder / "page-dark.png"))
    for thread in busy:
        thread.join()


def _grow_the_tree() -> None:
    for subject in SUBJECTS:
        _story(subject, 24)
    texts = {"text": "The capital of ", "suffixes": ["France is", "Italy is", "Japan is", "Peru is"]}
    httpx.post(f"{URL}/fork", json={**texts, "sampling_params": {"max_new_tokens": 8}}, timeout=60).raise_for_status()


def _story(subject: str, length: int) -> None:
    messages = [
        {"role": "system", "content": "You write very short stories for children."},
        {"role": "user", "content": f"Write a story about {subject}."},
    ]
    body = {"model": "smollm2-135m", "messages": messages, "max_tokens": length, "ignore_eos": True}
    httpx.post(f"{URL}/v1/chat/completions", json=body, timeout=120).raise_for_status()


def _run(driver: webdriver.Chrome, prompt: str) -> None:
    field = driver.find_element(By.ID, "prompt")
    field.clear()
    field.send_keys(prompt)
    driver.find_element(By.ID, "run").click()
    while not driver.find_element(By.ID, "run").is_enabled():
        time.sleep(0.1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
