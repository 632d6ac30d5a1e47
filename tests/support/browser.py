"""Chromium without a window, driven by its own protocol over a web socket: for test_browser.py.

    with browser(chromium, tmp_path) as page:
        page.open("http://127.0.0.1:8888/lab")
        page.until("document.querySelector('.jp-Notebook') !== null")

The protocol is https://chromedevtools.github.io/devtools-protocol; three of its methods do.
"""

import itertools
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
START_S = 60
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # a test may run as root in a container
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    # without these it asks its maker's hosts for updates, also where there is no network
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--remote-debugging-port=0",
    "--remote-allow-origins=*",
    "--window-size=1400,1000",
)


class PageError(Exception):
    """What the page threw."""


def find_browser() -> str | None:
    """The program, or None where there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Page:
    """One tab."""

    def __init__(self, address: str) -> None:
        import websocket

        self._socket = websocket.create_connection(address, timeout=START_S)
        self._numbers = itertools.count(1)
        # without a window nothing has the focus, and JupyterLab no current notebook
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One method of the protocol; events between are passed over."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            answer = json.loads(self._socket.recv())
            if answer.get("id") == number:
                if "error" in answer:
                    raise PageError(answer["error"]["message"])
                return answer["result"]

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; a promise is awaited.

        Raises:
            PageError: it threw.
        """
        found = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in found:
            raise PageError(found["exceptionDetails"]["exception"].get("description", expression))
        return found["result"].get("value")

    def until(self, expression: str, limit_s: float = START_S) -> Any:
        """The value of an expression as soon as it is true.

        Raises:
            TimeoutError: it is not, after `limit_s`.
        """
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            value = self.evaluate(expression)
            if value:
                return value
            time.sleep(0.5)
        raise TimeoutError(f"not true after {limit_s:.0f} s: {expression}")

    def press(self, key: str, number: int) -> None:
        """A key goes down and up, as if a hand had pressed it."""
        pressed = {"key": key, "code": key, "windowsVirtualKeyCode": number}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, **pressed)

    def close(self) -> None:
        self._socket.close()


@contextmanager
def browser(program: str, folder: Path) -> Iterator[Page]:
    """A browser with a profile of its own in `folder`, ended with the block."""
    log = folder / "browser.log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"],
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
    try:
        page = Page(_tab(log, process))
        yield page
        page.close()
    finally:
        process.terminate()
        process.wait(timeout=30)


def _tab(log: Path, process: subprocess.Popen) -> str:
    """The address of the first tab, which the browser's own page of tabs names."""
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        port = re.search(r"DevTools listening on ws://127\.0\.0\.1:(\d+)/", log.read_text())
        if port:
            with urlopen(f"http://127.0.0.1:{port[1]}/json", timeout=START_S) as answer:
                tabs = json.load(answer)
            pages = [tab for tab in tabs if tab["type"] == "page"]
            if pages:
                return pages[0]["webSocketDebuggerUrl"]
        time.sleep(0.2)
    raise TimeoutError(f"the browser did not start: {log.read_text()[-500:]}")
