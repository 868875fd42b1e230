"""nvcd's live page in Debian's Chromium: 200 slices, what changes, and names that are to stay text."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from support import MIB, until
from support.chromium import Chromium
from support.nvcd import Place
from support.page import Crowd, Shown, wanted

# With a browser, which takes processors; `make nightly-builds` has it.
pytestmark = [pytest.mark.nightly, pytest.mark.driver(gpus=8)]
SLICES = 200
SCRIPT = "<script>window.hurt=1</script>"
IMAGE = "<img src=x onerror=window.hurt=1>"
ROW = "[...document.querySelectorAll('.row')].find((one) => one.firstChild.textContent === {!r})"
#: Where things are: they stay there when figures change.
PLACES = "JSON.stringify([...document.querySelectorAll('.gpu, .row')].slice(0, 60).map((one) => one.offsetTop))"


@pytest.fixture
def browser(scratch: str) -> Iterator[Chromium]:
    made = Chromium(os.path.join(scratch, "chromium"))
    yield made
    made.end()


@pytest.fixture
def crowd(place: Place, driver: str) -> Iterator[Crowd]:
    slices = wanted(driver, SLICES)
    slices[0]["name"], slices[1]["name"] = SCRIPT, IMAGE
    made = Crowd(place, slices)
    yield made
    made.end()


def test_200_slices(place: Place, driver: str, crowd: Crowd, browser: Chromium) -> None:
    shown = Shown(place, f"--root={driver}")
    page = browser.open(shown.link)
    page.until(f"document.querySelectorAll('.row').length === {SLICES}")
    assert page.value("document.querySelectorAll('.gpu').length") == 8
    assert page.value("location.href") == shown.address  # the token is not kept in the history
    assert "8 GPUs · 200 slices" in page.value("document.getElementById('sums').textContent")

    row = ROW.format("job-7")
    crowd.tell(["process", 7, IMAGE[:15], 64 * MIB])
    page.until(f"{row}.children[4].textContent === '64 M / 2.0 G'")
    places, total = page.value(PLACES), [0, 0]

    def works() -> bool:
        total[0] += 40_000_000
        total[1] += 10_000_000
        crowd.tell(["time", 7, *total, 3])
        return bool(page.value(f"{row}.children[1].textContent === 'capped'"))

    until(works)
    assert page.value(f"{row}.children[6].textContent") == "3"
    assert page.value(f"parseFloat({row}.children[2].textContent) > 0") and page.value(PLACES) == places

    page.value(f"{row}.click()")
    page.until(f"{row}.nextSibling.innerText.includes({IMAGE[:15]!r})")
    names = "[...document.querySelectorAll('.row > .name')].map((one) => one.textContent)"
    assert {SCRIPT, IMAGE} <= set(page.value(names))
    assert page.value("document.images.length + document.querySelectorAll('main script').length") == 0
    assert page.value("window.hurt") is None

    crowd.tell(["end", 7])
    page.until(f"document.querySelectorAll('.row').length === {SLICES - 1}")
    for width, dark in ((390, False), (390, True), (1280, True)):
        page.look(width, 844, dark)
        page.until(f"innerWidth === {width} && document.documentElement.scrollWidth <= {width}")
    assert page.said("Runtime.exceptionThrown", "Log.entryAdded") == []
    markup = "try { document.body.innerHTML = '<b>x</b>'; } catch (error) { error.name; }"
    assert page.value(markup) == "TypeError"  # the browser takes no markup that is made of text
    asked = {one["request"]["url"].partition("?")[0] for one in page.said("Network.requestWillBeSent")}
    assert asked <= {shown.address + path for path in ("", "page.js", "page.css", "state", "favicon.ico")}


def test_who_has_no_token_is_told(place: Place, driver: str, browser: Chromium) -> None:
    """And one that nvcd leaves says so. The next nvcd has another token: the port may have been somebody else's."""
    shown = Shown(place, f"--root={driver}")
    page = browser.open(shown.address)
    page.until("document.getElementById('link')?.textContent === 'wants its token'")
    page.close()
    page = browser.open(shown.link)
    page.until("document.getElementById('link')?.textContent === 'live'")
    shown.daemon.kill()
    page.until("document.getElementById('link')?.textContent === 'no answer'")
    place.start(f"--web=127.0.0.1:{shown.port}", f"--root={driver}")
    page.until("document.getElementById('link')?.textContent === 'wants its token'")
