"""The page in a browser, narrow and wide, light and dark: readable by the rules of WCAG AA, whole, and by keyboard.

It needs Chromium and the extra `browser`. Screenshots go to the folder that MESHWRIGHT_SCREENSHOTS names, if it names one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import planner
from tests.small import NEVER, mlp, mlp_args, shapes, train_args, train_step

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("no Chromium here to open pages with", allow_module_level=True)
sync_playwright = pytest.importorskip(
    "playwright.sync_api", reason="pages are opened by playwright: pip install '.[browser]'"
).sync_playwright
Axe = pytest.importorskip(
    "axe_playwright_python.sync_playwright", reason="pages are checked by axe: pip install '.[browser]'"
).Axe

LONG = "a_rather_long_name_of_a_module_that_does_not_break"
WIDTHS, THEMES = (390, 1280, 1920), ("light", "dark")
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}
# What stands beyond the right edge of the window, or is cut off where it does not say so by an ellipsis.
CUT_OFF = """() => [...document.querySelectorAll("body *")].filter((at) => {
  if (at.closest("svg, .unseen, .skip") || !at.getClientRects().length) return false;
  const style = getComputedStyle(at), box = at.getBoundingClientRect();
  const hides = style.overflowX === "hidden" && style.textOverflow !== "ellipsis";
  return box.right > innerWidth + 1 || (hides && at.scrollWidth > at.clientWidth + 1);
}).map((at) => at.outerHTML.slice(0, 160))"""


def named(params: dict[str, Any], x: jax.Array) -> jax.Array:
    with jax.named_scope(LONG):
        return jnp.tanh(x @ params[LONG][LONG]["kernel"])


def made() -> dict[str, tuple[planner.Plan, bool]]:
    """Plans that differ in what their pages show, and whether a page is made of the plan's file alone."""
    step = planner.plan(train_step, shapes(train_args(1024, 4096)), topology="v5e:4x4", donate_argnums=0, options=NEVER)
    weight = jax.ShapeDtypeStruct((512, 512), jnp.float32)
    long = planner.plan(
        named,
        ({LONG: {LONG: {"kernel": weight}}}, weight),
        topology="cpu:16",
        mesh={"data": 4, "model": 2, "another": 2},
        pins={"x": P(("data", "model"))},
        options=NEVER,
    )
    one = planner.plan(mlp, mlp_args(), topology="cpu:1", options=NEVER)
    return {"step": (step, False), "names": (long, False), "one": (one, False), "file": (step, True)}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, found = tmp_path_factory.mktemp("pages"), dict[str, Path]()
    for name, (plan, bare) in made().items():
        found[name] = folder / f"{name}.html"
        if bare:
            plan.save(folder / "plan.json")
            planner.load(folder / "plan.json").report(found[name])
        else:
            plan.report(found[name])
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


def opened(browser: Any, path: Path, width: int = 1280, theme: str = "light") -> tuple[Any, list[str], list[str]]:
    """The page, what it asked for, and what its console said."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
    asked: list[str] = []
    said: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(path.as_uri())
    return page, asked, said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "width", "theme"),
    [("step", width, theme) for width in WIDTHS for theme in THEMES]
    + [(name, *seen) for name in ("names", "one", "file") for seen in ((390, "dark"), (1280, "light"))],
)
def test_it_is_readable_and_whole(
    browser: Any, pages: dict[str, Path], tmp_path: Path, name: str, width: int, theme: str
) -> None:
    page, asked, said = opened(browser, pages[name], width, theme)
    folder = Path(os.environ.get("MESHWRIGHT_SCREENSHOTS", tmp_path))
    for state in ("closed", "open"):
        if state == "open":
            page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        page.screenshot(path=folder / f"{name}_{width}_{theme}_{state}.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(CUT_OFF) == []
    found = Axe().run(page, options=RULES)
    assert found.violations_count == 0, found.generate_report()
    assert asked == [pages[name].as_uri()]
    assert said == []
    page.close()


def test_search_leaves_what_holds_the_words_and_opens_what_is_folded(browser: Any, pages: dict[str, Path]) -> None:
    page, _, _ = opened(browser, pages["step"])
    cards = page.locator(".array:visible").count()
    page.get_by_label("find").fill("params/w0")
    assert 0 < page.locator(".array:visible").count() < cards
    assert " of " in page.locator("nav output").inner_text()
    page.get_by_label("find").fill("not a word of the page")
    assert page.locator("[data-find]:visible").count() == 0
    page.get_by_label("find").fill("")
    assert page.locator(".array:visible").count() == cards
    page.close()


def test_contents_and_headings_lead_to_what_they_name(browser: Any, pages: dict[str, Path]) -> None:
    page, _, _ = opened(browser, pages["step"])
    for link in page.locator("nav a").all():
        link.click()
        target = page.locator(f"[id='{(link.get_attribute('href') or '')[1:]}']")
        box, bar = target.bounding_box(), page.locator("nav").bounding_box()
        assert box["y"] < 900
        assert box["y"] + box["height"] > bar["height"]
    assert page.locator("section h2").count() >= page.locator("nav a").count()
    page.close()


def test_arrays_open_their_alternatives_and_rows_are_picked_by_keyboard(browser: Any, pages: dict[str, Path]) -> None:
    page, _, _ = opened(browser, pages["step"])
    first = page.locator(".array details").first
    first.locator("summary").focus()
    page.keyboard.press("Enter")
    assert first.locator("li.is-chosen").is_visible()
    row = page.locator("#fold0 .row[tabindex='0']")
    row.focus()
    before = page.locator("#fold0 .detail").inner_text()
    page.keyboard.press("ArrowDown")
    assert page.locator("#fold0 .detail").inner_text() != before
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    page.close()


def test_what_has_the_focus_is_outlined(browser: Any, pages: dict[str, Path]) -> None:
    page, _, _ = opened(browser, pages["step"])
    for _ in range(30):
        page.keyboard.press("Tab")
        outline = page.evaluate("getComputedStyle(document.activeElement).outline")
        assert "none" not in outline, page.evaluate("document.activeElement.outerHTML")
        assert " 0px" not in outline, page.evaluate("document.activeElement.outerHTML")
    page.close()
