"""A report works in a real browser: it names what is pointed at, and nothing overlaps.

Needs Chromium and its driver (Debian: `apt-get install chromium chromium-driver`).
"""

import itertools as it
import shutil

import pytest
from networks import net, specs
from verified_plans import plan_and_graph

import monet_jax

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (BROWSER and DRIVER),
    reason="Chromium or its driver is not installed: apt-get install chromium chromium-driver",
)


@pytest.fixture(scope="module")
def browser():
    """Chromium without a window and without a network."""
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.add_argument("--host-resolver-rules=MAP * ~NOTFOUND")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=DRIVER)
    driver = webdriver.Chrome(options=options, service=service)
    yield driver
    driver.quit()


@pytest.fixture
def opened(browser, tmp_path):
    """The page of a plan, in a window of 1280 by 900."""
    path = tmp_path / "plan.html"
    plan_and_graph()[0].to_html(path)
    browser.set_window_size(1280, 900)
    browser.get(path.as_uri())
    yield browser
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def write_step(folder):
    """The page of a small step's plan."""
    plan = monet_jax.plan(monet_jax.jit(step, budget=0.7), *specs(256), target="cpu")
    plan.to_html(folder / "step.html")
    return folder / "step.html"


def step(params, x):
    def loss(params):
        return net(params, x)

    return monet_jax.value_and_grad(loss)(params)


def point_at(browser, chart: int, across: float, up: float) -> str:
    """Moves the pointer to a place of a chart, as shares of it; returns what the page says."""
    from selenium.webdriver.common.action_chains import ActionChains

    plot = browser.find_elements("css selector", ".mj-plot")[chart]
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", plot)
    size = plot.size
    x, y = (across - 0.5) * size["width"], (0.5 - up) * size["height"]
    ActionChains(browser).move_to_element_with_offset(plot, int(x), int(y)).perform()
    return browser.find_element("css selector", ".mj-tip").text


def place_of(chart, band) -> tuple[float, float]:
    """The middle of a band in a chart, by adding up what lies under it."""
    kinds = ("saved", "compressed", "passing", "recomputed", "gradient", "workspace")
    n = chart["bands"].index(band)
    m = (band[1] + band[2]) // 2
    low = chart["fixed"]
    for kind in kinds[: kinds.index(band[0])]:
        low += chart["rest"].get(kind, [0] * (m + 1))[m]
        low += sum(b[3] for b in chart["bands"] if b[0] == kind and b[1] <= m <= b[2])
    under = (b for b in chart["bands"][:n] if b[0] == band[0] and b[1] <= m <= b[2])
    low += sum(b[3] for b in under)
    step = chart["runs"] / len(chart["samples"])
    return (m + 0.5) * step / chart["across"], (low + band[3] / 2) / chart["top"]


def charts_of(browser) -> list[dict]:
    return browser.execute_script(
        "return JSON.parse(document.getElementById('mj-data').textContent).charts"
    )


@pytest.mark.parametrize("kind", ["saved", "gradient"])
def test_pointing_at_a_value_names_it_and_its_line(opened, kind):
    chart = charts_of(opened)[1]
    bands = [b for b in chart["bands"] if b[0] == kind and b[6]]
    band = max(bands, key=lambda b: b[3] * (b[2] - b[1] + 1))
    text = point_at(opened, 1, *place_of(chart, band))
    assert band[4] in text and "networks.py:" in text and band[6] in text
    assert "KiB" in text and " of stage " in text
    picked = opened.find_elements("css selector", ".mj-picked")[1]
    assert picked.get_attribute("d")


def test_pointing_elsewhere_says_so(opened):
    assert point_at(opened, 0, 0.2, 0.01).startswith("arguments and results")
    text = point_at(opened, 0, 0.2, 0.99)
    assert "in memory at run" in text and "arguments" not in text
    opened.execute_script("document.querySelector('h1').scrollIntoView()")
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(opened).move_to_element(opened.find_element("css selector", "h1")).perform()
    assert not opened.find_element("css selector", ".mj-tip").is_displayed()


def test_arrow_keys_walk_through_the_step(opened):
    plot = opened.find_elements("css selector", ".mj-plot")[1]
    plot.send_keys("\ue014")  # right
    assert "run 2 of" in opened.find_element("css selector", ".mj-tip").text
    plot.send_keys("\ue012")  # left
    assert "run 1 of" in opened.find_element("css selector", ".mj-tip").text


def test_a_table_header_sorts_its_table(opened):
    heads = [x.text for x in opened.find_elements("css selector", "#values th button")]

    def column(name):
        n = heads.index(name)
        rows = opened.find_elements("css selector", "#values tbody tr")
        return [row.find_elements("css selector", "td")[n] for row in rows]

    def click(name):
        buttons = opened.find_elements("css selector", "#values th button")
        opened.execute_script("arguments[0].click()", buttons[heads.index(name)])

    def sizes():
        return [int(cell.get_attribute("data-key")) for cell in column("bytes")]

    assert sizes() == sorted(sizes(), reverse=True)
    click("bytes")
    assert sizes() == sorted(sizes())
    click("primitive")
    names = [cell.text for cell in column("primitive")]
    assert names == sorted(names)
    click("again")
    shares = [float(cell.get_attribute("data-key")) for cell in column("again")]
    assert shares in (sorted(shares), sorted(shares, reverse=True)) and len(set(shares)) > 1


def test_the_table_filters_by_text_and_by_decision(opened):
    def shown():
        rows = opened.find_elements("css selector", "#values tbody tr")
        return [row for row in rows if row.is_displayed()]

    every = len(shown())
    name = shown()[0].get_attribute("data-names").split()[0]
    search = opened.find_element("css selector", "#mj-search")
    search.send_keys(name)
    assert 1 <= len(shown()) < every
    assert all(name in row.get_attribute("data-names") for row in shown())
    search.clear()
    search.send_keys(" \ue003")  # a space and away with it, so that the page hears of it
    opened.find_element("css selector", "#mj-decision").send_keys("recomputed")
    assert {row.get_attribute("data-decision") for row in shown()} == {"recomputed"}
    assert f"{len(shown())} rows" == opened.find_element("css selector", "#mj-found").text


def test_a_click_on_a_value_marks_its_row(opened):
    from selenium.webdriver.common.action_chains import ActionChains

    chart = charts_of(opened)[1]
    names = {n for row in plan_and_graph()[0].values for n in (row.name,)}
    bands = [b for b in chart["bands"] if b[0] == "saved" and b[4].split(":")[0] in names]
    band = max(bands, key=lambda b: b[3] * (b[2] - b[1] + 1))
    point_at(opened, 1, *place_of(chart, band))
    ActionChains(opened).click().perform()
    (row,) = opened.find_elements("css selector", "#values tr.mj-marked")
    assert band[4].split(":")[0] in row.get_attribute("data-names").split()


def test_the_page_of_a_step_names_what_is_planned(browser, tmp_path):
    """One mark has the whole page; its table is there and nothing is wider than a phone."""
    browser.get(write_step(tmp_path).as_uri())
    assert browser.find_elements("css selector", "#values tbody tr")
    assert "loss" in browser.title


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 700, 390])
def test_nothing_overlaps_or_leaves_the_page(opened, width, dark):
    opened.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
    )
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    try:
        assert opened.execute_script("return document.documentElement.scrollWidth") <= width
        ground = opened.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(255, 255, 255)") == (not dark)
        for plot in opened.find_elements("css selector", ".mj-plot"):
            spans = plot.find_elements("css selector", "span")
            boxes = [(x.text, x.rect) for x in spans if x.is_displayed()]
            assert len(boxes) >= 2
            for (text, a), (other, b) in it.combinations(boxes, 2):
                assert apart(a, b), (text, other)
    finally:
        opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def apart(a, b) -> bool:
    """Whether two boxes have no more than a pixel in common, across or upwards."""
    across = min(a["x"] + a["width"], b["x"] + b["width"]) - max(a["x"], b["x"])
    down = min(a["y"] + a["height"], b["y"] + b["height"]) - max(a["y"], b["y"])
    return across <= 1 or down <= 1
