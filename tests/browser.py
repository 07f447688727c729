"""A headless Chromium that tests drive through its DevTools, over a pipe: it needs no port and no package."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")

#: Works as root, and asks no other host for anything.
OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync")
OPTIONS += ("--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe")


class DevToolsError(Exception):
    """The browser refuses a command, for example since the page began to load itself again."""


class Browser:
    """One page in a browser.

    Attributes:
        complaints: errors and warnings of the page's scripts, and addresses that it requested besides itself.
    """

    def __init__(self, page: Path, profile: Path, *, width: int, dark: bool = False) -> None:
        self._words = [str(CHROMIUM), *OPTIONS, f"--user-data-dir={profile}", "about:blank"]
        self._page, self._width, self._dark = page, width, dark
        self._number = 0
        self.complaints: list[str] = []

    def __enter__(self) -> Self:
        (read, self._write), (self._read, write) = os.pipe(), os.pipe()
        redirected = f'exec "$@" 3<&{read} 4>&{write}'  # the numbers that Chromium expects
        self._process = subprocess.Popen(
            ["bash", "-c", redirected, "bash", *self._words],
            pass_fds=(read, write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read)
        os.close(write)
        self._answers = os.fdopen(self._read, "rb")
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Runtime", "Log", "Network", "Page"):
            self.call(f"{domain}.enable")
        scheme = {"name": "prefers-color-scheme", "value": "dark" if self._dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        size = {"width": self._width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Page.navigate", url=self._page.as_uri())
        self.wait_for("location.protocol === 'file:'")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        self._answers.close()
        os.close(self._write)

    def call(self, method: str, **parameters: Any) -> Any:
        """Return the result of a DevTools command, after noting the events that came before it."""
        self._number += 1
        session = {"sessionId": self._session} if self._session else {}
        message = {"id": self._number, "method": method, "params": parameters, **session}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._number:
            self._note(answer)
        if "error" in answer:
            raise DevToolsError(answer["error"])
        return answer["result"]

    def _receive(self) -> dict[str, Any]:
        text = bytearray()
        while (byte := self._answers.read(1)) != b"\0":
            assert byte, "the browser has ended"
            text += byte
        found: dict[str, Any] = json.loads(text)
        return found

    def _note(self, event: dict[str, Any]) -> None:
        told = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(str(told["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if told["type"] in ("error", "warning", "assert"):
                self.complaints.append(str(told["args"]))
            case "Log.entryAdded" if told["entry"]["level"] in ("error", "warning"):
                self.complaints.append(told["entry"]["text"])
            case "Network.requestWillBeSent" if not told["request"]["url"].startswith((self._page.as_uri(), "data:")):
                self.complaints.append(told["request"]["url"])

    def value(self, script: str) -> Any:
        """Return the value of an expression in the page, in the next one if the page is about to load itself again."""
        while True:
            try:
                found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
            except DevToolsError:
                self.wait_for("true")
                continue
            assert "exceptionDetails" not in found, found
            return found["result"].get("value")

    def wait_for(self, script: str) -> None:
        """Wait until an expression is true in a complete page."""
        for _ in range(600):
            with suppress(DevToolsError):
                ready = f"document.readyState === 'complete' && Boolean({script})"
                if self.call("Runtime.evaluate", expression=ready, returnByValue=True)["result"].get("value") is True:
                    return
            time.sleep(0.1)
        raise AssertionError(f"never true: {script}")

    def press(self, key: str) -> None:
        """Press a key of the keyboard."""
        text = {"Enter": "\r", " ": " "}.get(key)
        common = {"key": key, **({"text": text} if text else {})}
        self.call("Input.dispatchKeyEvent", type="keyDown", **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def screenshot(self, path: Path) -> None:
        """Write a picture of the whole page."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))
