"""A headless Chromium spoken to over a pipe, in Chromium's DevTools protocol: JSON messages that end with a NUL."""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
ANSWER_S = 60.0
BECOME = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
for end, number in zip(ends, (3, 4)):
    os.dup2(end, number)
    os.close(end)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Becomes a program whose file descriptors 3 and 4, which the protocol is spoken over, are the given ones."""


def chromium_path() -> str | None:
    """The browser of this machine, None where there is none."""
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


class Tab:
    """One page: scripts are evaluated in it, and everything it asked for or complained about is kept."""

    def __init__(self, to: int, back: int) -> None:
        self.to, self.back = to, back
        self.rest, self.number, self.session = b"", 0, ""
        self.requests: list[str] = []
        self.errors: list[str] = []

    def open(self, url: str, width: int = 1400, height: int = 1000) -> None:
        """Load `url` and wait until its script says that it is ready."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Network", "Runtime", "Log", "Page"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url=url)
        deadline = time.monotonic() + ANSWER_S
        while self.value("document.body?.dataset.ready") != "yes":
            assert time.monotonic() < deadline and not self.errors, f"the page was never ready: {self.errors}"
            time.sleep(0.05)

    def value(self, script: str) -> Any:
        """What a script evaluates to, as plain values."""
        done = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def dark(self) -> None:
        """Show the page as to one who prefers dark colours."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])

    def screenshot(self, path: Path) -> None:
        """Write a PNG of what the window shows."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one message and wait for its answer."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        method, values = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(values["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(str(values["exceptionDetails"]))
        elif method == "Log.entryAdded" and values["entry"]["level"] == "error":
            self.errors.append(values["entry"]["text"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self.rest:
            assert select.select([self.back], [], [], ANSWER_S)[0], "the browser says nothing"
            more = os.read(self.back, 1 << 16)
            assert more, "the browser has ended"
            self.rest += more
        message, _, self.rest = self.rest.partition(b"\0")
        return dict(json.loads(message))


@contextmanager
def browser(program: str, folder: Path) -> Iterator[Tab]:
    """Start a browser with its profile in `folder`, and end it afterwards."""
    read_by_it, to = os.pipe()
    back, written_by_it = os.pipe()
    command = [
        sys.executable, "-c", BECOME, str(read_by_it), str(written_by_it), program, "--headless", "--no-sandbox",
        "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe", f"--user-data-dir={folder}",
    ]  # fmt: skip
    process = subprocess.Popen(
        command, pass_fds=(read_by_it, written_by_it), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(read_by_it)
    os.close(written_by_it)
    try:
        yield Tab(to, back)
    finally:
        os.close(to)
        os.close(back)
        process.terminate()
        process.wait(timeout=20)
