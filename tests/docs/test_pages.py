"""The site in a browser, in light and dark, on a telephone and a desk: all can be read by all."""

import itertools

import pytest

PAGES = "index", "tutorial/1-hello", "faster", "api-torch", "errors/Deadlock", "cli"
PHONE, DESK = 390, 1440  # pixels
LAYOUT = """() => ({
    wider: [...document.querySelectorAll("*")].filter((each) =>
        each.scrollWidth > each.clientWidth + 1 && getComputedStyle(each).overflowX != "visible"
        && !each.matches("pre, .table-wrapper, .visually-hidden")).map((each) => each.outerHTML),
    broken: [...document.images].filter((each) => each.naturalWidth == 0).map((each) => each.src),
    shown: [...document.images].filter((each) => each.checkVisibility())
        .map((each) => each.className),
})"""


@pytest.fixture
def tab(browser, request):
    """A tab in a mode and of a width; what a page writes to its console fails the test."""
    mode, width = request.param
    said = []
    with browser.new_context(
        color_scheme=mode, viewport={"width": width, "height": 900}
    ) as context:
        tab = context.new_page()
        tab.mode = mode
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        yield tab
    assert not said


def opened(tab, site):
    for name in PAGES:
        tab.goto((site / name).with_suffix(".html").as_uri())
        yield name


@pytest.mark.parametrize(
    "tab", [*itertools.product(("light", "dark"), (PHONE, DESK))], indirect=True
)
def test_a_page_fits_and_its_pictures_are_those_of_the_mode(tab, site):
    other = {"light": "only-dark", "dark": "only-light"}[tab.mode]
    for name in opened(tab, site):
        found = tab.evaluate(LAYOUT)
        assert not found["wider"], name
        assert not found["broken"], name
        assert not [each for each in found["shown"] if other in each], name


@pytest.mark.parametrize("tab", [("light", PHONE), ("dark", DESK)], indirect=True)
def test_axe_finds_nothing(tab, site):
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="pip install axe-playwright-python"
    ).Axe()
    for name in opened(tab, site):
        found = axe.run(tab, options={"resultTypes": ["violations"], "preload": False})
        assert found.violations_count == 0, f"{name}: {found.generate_report()}"
