"""A real browser for tests: Debian's Chromium without a window, led by the DevTools protocol over a pipe."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from typing import Any

from . import CLEAN_ENV, PATIENCE, need, until

WORDS = (
    "--headless=new", "--no-sandbox", "--remote-debugging-pipe", "--disable-gpu", "--disable-dev-shm-usage",
    "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
#: Root's need of --no-sandbox is this machine's, not the page's.


class Page:
    """A tab that has been sent to an address."""

    def __init__(self, browser: Chromium, address: str) -> None:
        self.browser = browser
        made = browser.call("Target.createTarget", url="about:blank")["targetId"]
        attached = browser.call("Target.attachToTarget", targetId=made, flatten=True)
        self.session = attached["sessionId"]
        self.target = made
        self.call("Page.enable")
        self.call("Runtime.enable")
        self.call("Log.enable")
        self.call("Network.enable")
        self.look(1280, 900)
        self.call("Page.navigate", url=address)

    def look(self, width: int, height: int, dark: bool = False) -> None:
        """Be of that size, and as a machine with dark colours has it."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
            mobile=width < 500,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def call(self, method: str, **words: Any) -> Any:
        return self.browser.call(method, self.session, **words)

    def value(self, code: str) -> Any:
        """What an expression of the page is, as JSON has it."""
        found = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, code: str) -> Any:
        """The same once it is true."""
        return until(lambda: self.value(code), lambda: f"{code}\n{self.value('document.body.innerText')}")

    def picture(self, path: str) -> None:
        """A PNG of what is seen."""
        import base64

        with open(path, "wb") as out:
            out.write(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def said(self, *methods: str) -> list[Any]:
        """What the browser told of this page: messages of these kinds."""
        self.value("1")  # what came before has been read
        mine = [one for one in self.browser.told if one.get("sessionId") == self.session]
        return [one["params"] for one in mine if one["method"] in methods]

    def close(self) -> None:
        self.browser.call("Target.closeTarget", targetId=self.target)


class Chromium:
    """The browser; it has a directory of its own for all that it keeps."""

    def __init__(self, directory: str) -> None:
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        words = [need("chromium"), *WORDS, f"--user-data-dir={directory}", "about:blank"]
        self.process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "sh", *words],
            pass_fds=(theirs_in, theirs_out), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, env={**CLEAN_ENV, "HOME": directory}, start_new_session=True,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self._data = b""
        self._number = 0
        self.told: list[Any] = []

    def call(self, method: str, session: str = "", **words: Any) -> Any:
        """The result of a method of the protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": words}
        if session:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            found = self._message()
            if found.get("id") == self._number:
                assert "error" not in found, found
                return found["result"]
            self.told.append(found)

    def _message(self) -> Any:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._data:
            ready, _, _ = select.select([self._in], [], [], max(end - time.monotonic(), 0))
            part = os.read(self._in, 1 << 20) if ready else b""
            assert part, "the browser does not answer"
            self._data += part
        line, _, self._data = self._data.partition(b"\0")
        return json.loads(line)

    def open(self, address: str) -> Page:
        return Page(self, address)

    def end(self) -> None:
        os.close(self._out)  # it ends with its pipe
        try:
            self.process.wait(timeout=PATIENCE)
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, 9)
                self.process.wait()
            os.close(self._in)
