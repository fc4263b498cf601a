"""A headless Chromium driven over the DevTools protocol by a pair of pipes: no driver, no extra package.

Unlike `--dump-dom`, this can wait for what happens after the page was loaded, and narrow the page below the
least width of a window.
"""

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--remote-debugging-pipe",
)
TIMEOUT_SECONDS = 45.0
# The browser wants exactly descriptors 3 and 4. Copies first: either may be one of the two already.
LAUNCH = """import os, sys
copies = [os.dup(int(number)) for number in sys.argv[1:3]]
copies = [os.dup(copy) if copy in (3, 4) else copy for copy in copies]
for place, copy in zip((3, 4), copies):
    os.dup2(copy, place)
os.execv(sys.argv[3], sys.argv[3:])"""


class Page:
    """One tab.

    Args:
        to_browser: descriptor that Chromium reads.
        from_browser: descriptor that Chromium writes.
    """

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._number = 0
        self._rest = b""
        self._session: str | None = None
        self.complaints: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: object) -> dict[str, Any]:
        """Calls a method of the protocol and returns its result."""
        self._number += 1
        message: dict[str, object] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._number:
            self._note(answer)
        assert "error" not in answer, (method, answer["error"])
        result: dict[str, Any] = answer["result"]
        return result

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._from, 1 << 20)
            assert part, "the browser has gone"
            self._rest += part
        whole, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(whole)
        return answer

    def _note(self, event: dict[str, Any]) -> None:
        """Remembers uncaught errors and what the browser blocked, a violated policy among it."""
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(event["params"]["exceptionDetails"]))
        if event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
            self.complaints.append(event["params"]["entry"]["text"])

    def look(self, width: int, height: int, *, dark: bool = False) -> None:
        """The size of the page and the reader's preference."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, address: str) -> None:
        """Goes there and returns when the page is loaded."""
        self.send("Page.navigate", url=address)
        self.wait(f"location.href === {json.dumps(address)} && document.readyState === 'complete'")

    def leave(self) -> None:
        """Opens a blank page and clears complaints; a page without its server keeps reconnecting."""
        self.open("about:blank")
        self.complaints.clear()

    def value(self, expression: str) -> Any:
        """What an expression comes to in the page."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, expression: str, accept: Callable[[Any], bool] = bool) -> Any:
        """Its value once it is accepted; fails after a time that only a defect takes."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not accept(found := self.value(expression)):
            assert time.monotonic() < deadline, (expression, found, self.complaints)
            time.sleep(0.05)
        return found

    def screenshot(self, path: Path) -> None:
        """The whole page as PNG."""
        height = self.value("document.documentElement.scrollHeight")
        width = self.value("innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        data = self.send("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))


@contextmanager
def chromium(profile: Path) -> Iterator[Page]:
    """A browser with one blank page."""
    own = f"--user-data-dir={profile}"
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCH, f"{to_read}", f"{from_write}", f"{BROWSER}", *OPTIONS, own],
        pass_fds=(to_read, from_write),
        stderr=subprocess.DEVNULL,
    )
    os.close(to_read)
    os.close(from_write)
    try:
        yield Page(to_write, from_read)
    finally:
        os.close(to_write)
        os.close(from_read)
        process.terminate()
        process.wait(30)
