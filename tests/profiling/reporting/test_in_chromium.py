"""The page in a real browser: it asks for nothing, complains of nothing, follows the colour scheme and fits a phone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from essm_deploy.profiling.reporting.write import write_reports
from essm_deploy.profiling.verdict import Limits
from tests.chromium import Page, chromium, find_chromium
from tests.profiling.reporting.documents import estimated, make_document, nothing_measured
from tests.profiling.reporting.test_pages import several

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_chromium() is None, reason="needs a chromium to open the page in"),
]

DOCUMENTS = {
    "limits": lambda: make_document(Limits(max_latency_ms=2.0, max_memory_bytes=56 * 2**20)),
    "several": several,
    "estimated": estimated,
    "nothing": nothing_measured,
    "all": lambda: make_document(budgets=range(1, 33), quality=None),
}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_page_is_whole_in_a_browser(name: str, page: Page, tmp_path: Path) -> None:
    document: dict[str, Any] = DOCUMENTS[name]()
    write_reports(document, [tmp_path / "out.html"])
    page.open((tmp_path / "out.html").as_uri())
    assert page.requested() == []
    assert page.complaints() == []
    pictures = {}
    for width in (1200, 390):
        for dark in (False, True):
            page.look(width=width, height=844, dark=dark)
            pictures[width, dark] = page.picture()
            assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), width
            assert page.evaluate("getComputedStyle(document.body).backgroundColor") == (DARK if dark else LIGHT)
    assert pictures[1200, False] != pictures[1200, True]
    assert page.requested() == []
    assert page.complaints() == []


DARK, LIGHT = "rgb(20, 23, 27)", "rgb(255, 255, 255)"

CONTRAST = """
(() => {
  const rgb = text => text.match(/[0-9.]+/g).slice(0, 3).map(Number);
  const part = v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = c => { const [r, g, b] = rgb(c).map(part); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    if (!/rgba\\(.*, 0\\)/.test(c)) return c; } return 'rgb(255, 255, 255)'; };
  const poor = [];
  for (const e of document.querySelectorAll('p, dt, dd, span, strong, th, td, li, a, text, caption, figcaption')) {
    if (!e.textContent.trim()) continue;
    const s = getComputedStyle(e), front = e.ownerSVGElement ? s.fill : s.color;
    const [a, b] = [light(front), light(behind(e))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) poor.push([e.tagName, e.getAttribute('class'), e.textContent.slice(0, 30)].join(' '));
  }
  return poor;
})()
"""


@pytest.mark.parametrize("dark", [False, True])
def test_every_text_can_be_read(dark: bool, page: Page, tmp_path: Path) -> None:
    """The ratio of contrast is at least 4.5, as WCAG 2.2 asks at level AA (1.4.3)."""
    write_reports(DOCUMENTS["limits"](), [tmp_path / "out.html"])
    page.open((tmp_path / "out.html").as_uri())
    page.look(width=1200, height=900, dark=dark)
    assert page.evaluate(CONTRAST) == []


def test_the_samples_are_one_click_away(page: Page, tmp_path: Path) -> None:
    write_reports(make_document(), [tmp_path / "out.html"])
    page.open((tmp_path / "out.html").as_uri())
    link = page.evaluate("(a => [a.download, a.protocol])(document.querySelector('.samples a'))")
    assert link == ["out.json", "data:"]
