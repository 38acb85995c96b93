"""Controls a real browser without a window: Chromium, through a pipe (DevTools protocol)."""

import base64
import io
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

from PIL import Image

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))),
    None,
)
_TIMEOUT = 60.0  # seconds for an answer
# Chromium reads commands from file 3 and writes answers to file 4.
_LAUNCH = """import os, sys
commands, answers = (os.dup(int(number)) for number in sys.argv[1:3])
os.dup2(commands, 3), os.dup2(answers, 4)
os.set_inheritable(3, True), os.set_inheritable(4, True)
os.execv(sys.argv[3], sys.argv[3:])"""
_KEYS = {  # what each key types, and its code
    "Tab": ("\t", 9),
    "Enter": ("\r", 13),
    "Escape": ("", 27),
    " ": (" ", 32),
    "End": ("", 35),
    "Home": ("", 36),
    "ArrowLeft": ("", 37),
    "ArrowUp": ("", 38),
    "ArrowRight": ("", 39),
    "ArrowDown": ("", 40),
    "/": ("/", 191),
}
_SHIFT = 8
# Remembers what the page was not allowed to do.
_WATCH = """window.violations = [];
document.addEventListener("securitypolicyviolation",
  (event) => violations.push(`${event.violatedDirective} ${event.blockedURI}`));"""
_BOX = """(() => {{ const element = document.querySelectorAll({selector!r})[{n}];
  element.scrollIntoView({{block: "nearest", behavior: "instant"}});
  const box = element.getBoundingClientRect();
  return [box.x + box.width / 2, box.y + box.height / 2]; }})()"""
_PASTE = """(() => {{ const bytes = Uint8Array.from(atob("{data}"), (c) => c.charCodeAt(0));
  const data = new DataTransfer();
  data.items.add(new File([bytes], "pasted.png", {{type: "image/png"}}));
  document.body.dispatchEvent(
    new ClipboardEvent("paste", {{clipboardData: data, bubbles: true, cancelable: true}})); }})()"""


class Browser:
    """One tab. `addresses` are the URLs that it requested: pages, and what they load."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._waiting = b""
        self._events: list[dict[str, Any]] = []
        self._sent = 0
        self._session: dict[str, str] = {}
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": session["sessionId"]}
        for domain in ("Page", "Network", "Runtime"):
            self.call(f"{domain}.enable")
        self.call("Page.addScriptToEvaluateOnNewDocument", source=_WATCH)

    @property
    def addresses(self) -> list[str]:
        sent = (event for event in self._events if event["method"] == "Network.requestWillBeSent")
        return [event["params"]["request"]["url"] for event in sent]

    @property
    def errors(self) -> list[dict[str, Any]]:
        return [event for event in self._events if event["method"] == "Runtime.exceptionThrown"]

    def open(
        self, page: Path | str, *, width: int = 1200, height: int = 900, dark: bool = False
    ) -> None:
        """Open a file or an address, and wait until it is loaded."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self._events.clear()
        self.call("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._receive()

    def value(self, expression: str) -> Any:
        options = {"returnByValue": True, "awaitPromise": True}
        answer = self.call("Runtime.evaluate", expression=expression, **options)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait_for(self, expression: str, *, seconds: float = 30) -> Any:
        """Wait until an expression is true, and return its value."""
        end = time.monotonic() + seconds
        found = f"((found) => found instanceof Element || found)({expression})"
        while not (value := self.value(found)):
            assert time.monotonic() < end, f"never true: {expression}"
            time.sleep(0.02)
        return value

    def centre(self, selector: str, n: int = 0) -> tuple[float, float]:
        """Return the middle of an element, which is scrolled into view."""
        x, y = self.value(_BOX.format(selector=selector, n=n))
        return x, y

    def hover(self, selector: str, n: int = 0) -> None:
        """Point at an element with the mouse."""
        self.point_at(*self.centre(selector, n))

    def click(self, selector: str, n: int = 0) -> None:
        """Click on an element with the mouse."""
        x, y = self.centre(selector, n)
        self.drag((x, y), (x, y))

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Move the mouse from one point to another with its button pressed."""
        self.point_at(*start)
        button = {"button": "left", "clickCount": 1}
        steps = (("mousePressed", start), ("mouseMoved", end), ("mouseReleased", end))
        for kind, (x, y) in steps:
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button)

    def type(self, text: str) -> None:
        """Type into the element that has the focus."""
        self.call("Input.insertText", text=text)

    def drop(self, path: Path, x: float = 300, y: float = 300) -> None:
        """Drop a file from the desktop."""
        data = {"items": [], "files": [str(path)], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.call("Input.dispatchDragEvent", type=kind, x=x, y=y, data=data)

    def paste(self, image: bytes) -> None:
        """Paste an image."""
        self.value(_PASTE.format(data=base64.b64encode(image).decode()))

    def choose_file(self, selector: str, path: Path) -> None:
        """Choose a file as in the dialog of the system."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        field = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=field, files=[str(path)])

    def point_at(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def touch(self, x: float, y: float) -> None:
        """Touch the screen as a finger does; the browser turns it into a click."""
        self.call("Emulation.setTouchEmulationEnabled", enabled=True)
        self.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
        self.call("Emulation.setTouchEmulationEnabled", enabled=False)

    def press(self, key: str, *, shift: bool = False) -> None:
        text, code = _KEYS[key]
        event = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": code}
        event["modifiers"] = _SHIFT if shift else 0
        kind = {"type": "keyDown", "text": text} if text else {"type": "rawKeyDown"}
        self.call("Input.dispatchKeyEvent", **kind, **event)
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def capture(self, box: list[float]) -> Image.Image:
        x, y, width, height = box
        clip = {"x": x, "y": y, "width": width, "height": height, "scale": 1}
        answer = self.call("Page.captureScreenshot", clip=clip)
        return Image.open(io.BytesIO(base64.b64decode(answer["data"]))).convert("RGB")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._sent += 1
        command = {"id": self._sent, "method": method, "params": parameters, **self._session}
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._sent:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + _TIMEOUT
        while b"\0" not in self._waiting:
            ready, _, _ = select.select([self._answers], [], [], deadline - time.monotonic())
            assert ready, "the browser does not answer"
            part = os.read(self._answers, 1 << 16)
            assert part, "the browser has ended"
            self._waiting += part
        message, _, self._waiting = self._waiting.partition(b"\0")
        received: dict[str, Any] = json.loads(message)
        if "method" in received:
            self._events.append(received)
        return received


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Start a browser with an empty profile, and end it."""
    assert CHROMIUM is not None
    (theirs_in, commands), (answers, theirs_out) = os.pipe(), os.pipe()
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run")
    launch = [sys.executable, "-c", _LAUNCH, str(theirs_in), str(theirs_out), CHROMIUM, *options]
    process = subprocess.Popen(
        [*launch, "--remote-debugging-pipe", f"--user-data-dir={profile}"],
        pass_fds=(theirs_in, theirs_out),
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Browser(commands, answers)
    finally:
        os.close(commands)  # the browser ends when its pipe is closed
        os.close(answers)
        try:
            process.wait(timeout=_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
