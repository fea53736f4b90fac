"""The pages in a real Chromium: a new chip set up by clicks, accessibility, and escaped text."""

from __future__ import annotations

import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from tests.fixtures import service_of
from tests.places import ROOT

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = [
    pytest.mark.slow(seconds=60),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: `make browser` installs it"),
]
EXAMPLE = ROOT / "examples/new_chip"
DOCUMENTS = ("guidance/memory-bound.md", "hardware/h100/tuning.md")
EVIL = "<img src=x onerror=\"document.documentElement.dataset.evil='yes'\">"
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
PATIENCE = 120_000  # milliseconds: a loaded machine is not a defect of a page


@dataclass(frozen=True)
class Site:
    """A running service, and the files of an unknown chip."""

    url: str
    chip: str
    files: Path


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, model_cache: Path) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("browser")
    seed = secrets.randbelow(10_000)
    make = [sys.executable, str(EXAMPLE / "chip.py"), str(seed), str(folder / "chip")]
    subprocess.run(make, check=True, capture_output=True)
    with service_of(folder, DOCUMENTS, model_cache) as url:
        yield Site(url, f"nova-{seed}", folder / "chip")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        # Without Chromium's sandbox, which root cannot use.
        launched = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport=DESKTOP)  # type: ignore[arg-type]
    context.set_default_timeout(PATIENCE)
    opened = context.new_page()
    complaints: list[str] = []
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
    yield opened
    context.close()
    # The browser reports an answer with an error status; the pages show it.
    assert [c for c in complaints if "Failed to load resource" not in c] == []


def saying(page: Page | Locator, text: str) -> Locator:
    return page.get_by_text(text, exact=False).first


def test_new_chip_from_upload_to_finished_run(site: Site, page: Page) -> None:
    expect.set_options(timeout=PATIENCE)
    page.goto(f"{site.url}/ui")
    page.get_by_role("link", name="Add a chip").click()
    page.get_by_label("Id", exact=True).fill(site.chip)
    page.get_by_label("Languages").fill("novac")
    page.get_by_role("button", name="Add the chip").click()

    page.get_by_label("Files", exact=True).set_input_files(site.files / "manual.md")
    page.get_by_role("button", name="Upload").click()
    expect(page.locator("#sent li").get_by_text("ready", exact=True)).to_be_visible()
    expect(page.locator("#live").get_by_text("1 of 1 are read")).to_be_visible()
    page.get_by_label("Take the text from a file").set_input_files(site.files / "hardware.toml")
    page.get_by_role("button", name="Save the description").click()
    # The manual is read again for names and kernels, because its language is known now.
    expect(page.locator("#live").get_by_text("1 of 1 are read")).to_be_visible()
    page.get_by_role("button", name="Check it").click()
    expect(page.get_by_role("status")).to_contain_text("Complete")

    page.get_by_role("link", name="See the proposed facts").click()
    for box in page.get_by_role("checkbox").all():
        box.check()
    page.get_by_role("button", name="Accept the marked").click()
    expect(saying(page, "No facts here are proposed")).to_be_visible()
    page.get_by_role("link", name="What a first prompt would contain").click()
    expect(saying(page, "The text")).to_be_visible()
    page.go_back()
    page.get_by_role("link", name="Ask about it").click()
    page.get_by_label("Paste a log").fill("how large is the scratchpad")
    page.get_by_role("button", name="Ask", exact=True).click()
    page.locator("article.card h3 a").first.click()
    expect(page.get_by_role("heading", name="Correct it")).to_be_visible()

    page.goto(f"{site.url}/ui/hardware/{site.chip}/setup")
    page.get_by_role("link", name="Search for a kernel").click()
    page.get_by_label("Take the text from a file").set_input_files(EXAMPLE / "problems/matmul.py")
    page.get_by_label("Name", exact=True).fill("matmul")
    page.get_by_label("Candidates", exact=True).fill("2")
    page.get_by_role("button", name="Start the run").click()
    # From here on no reload: the page updates itself.
    expect(page.locator("#live").get_by_text("finished", exact=True)).to_be_visible()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"matmul on {site.chip}")
    expect(page.locator("ul.tree li")).to_have_count(3)
    page.locator("#n2 > details > summary").click()
    expect(page.locator("#n2 .body").get_by_role("heading", name="Code")).to_be_visible()
    assert httpx.get(f"{site.url}/ui/runs", params={"q": "matmul", "state": "finished"}).text.count(
        "matmul</a>"
    )


def test_several_files_are_sent_with_separate_progress(
    site: Site, page: Page, tmp_path: Path
) -> None:
    files = [tmp_path / f"{name}.md" for name in ("one", "two", "three")]
    for file in files:
        file.write_text(f"# {file.stem}\n\nText {EVIL}.\n", encoding="utf-8")
    files.append(tmp_path / "empty.md")
    files[-1].write_text("", encoding="utf-8")
    page.goto(f"{site.url}/ui/upload")
    page.get_by_label("Files", exact=True).set_input_files(files)
    page.get_by_role("button", name="Upload").click()
    rows = page.locator("#sent > li")
    expect(rows.get_by_text("ready", exact=True)).to_have_count(3)
    expect(rows.get_by_text("rejected", exact=True)).to_have_count(1)


def test_equal_names_in_folders_are_separate_and_bare_ones_refused(
    site: Site, page: Page, tmp_path: Path
) -> None:
    expect.set_options(timeout=PATIENCE)
    for n in range(3):
        (tmp_path / f"docs/part{n}").mkdir(parents=True)
        text = f"# Part {n} of the folder\n\nAll about {n}.\n"
        (tmp_path / f"docs/part{n}/README.md").write_text(text, encoding="utf-8")
    page.goto(f"{site.url}/ui/upload")
    page.get_by_label("Or a folder").set_input_files(tmp_path / "docs")
    page.get_by_role("button", name="Upload").click()
    rows = page.locator("#sent > li")
    expect(rows.get_by_text("ready", exact=True)).to_have_count(3)
    listed = httpx.get(f"{site.url}/documents", params={"q": "README", "origin": "upload"}).json()
    assert sorted(d["title"] for d in listed["documents"]) == [
        f"Part {n} of the folder" for n in range(3)
    ]
    for n in range(2):  # different bytes from the stored ones
        (tmp_path / f"docs/part{n}/README.md").write_text(f"# Bare {n}\n\nNew.\n", encoding="utf-8")
    page.reload()
    page.get_by_label("Files", exact=True).set_input_files(
        [tmp_path / f"docs/part{n}/README.md" for n in range(2)]
    )
    page.get_by_role("button", name="Upload").click()
    expect(rows.get_by_text("two files of this upload", exact=False)).to_have_count(1)


def test_unrelated_file_waits_for_decision(site: Site, page: Page, tmp_path: Path) -> None:
    expect.set_options(timeout=PATIENCE)
    file = tmp_path / "same.md"
    for text in ("# Osprey\n\nAll of one bird of prey.\n", "# Plankton\n\nSmall drifting life.\n"):
        file.write_text(text, encoding="utf-8")
        page.goto(f"{site.url}/ui/upload")
        page.get_by_label("Files", exact=True).set_input_files(file)
        page.get_by_role("button", name="Upload").click()
        if "Osprey" in text:
            expect(page.locator("#sent").get_by_text("ready", exact=True)).to_be_visible()
    page.get_by_role("button", name="Keep both documents").click()
    expect(page.locator("#sent").get_by_text("ready", exact=True)).to_be_visible()
    for title in ("Osprey", "Plankton"):
        page.goto(f"{site.url}/ui/search?q=same")
        expect(page.locator("main").get_by_role("link", name=title)).to_be_visible()


def test_error_is_shown_at_its_form_and_fact_corrected_in_place(site: Site, page: Page) -> None:
    page.goto(f"{site.url}/ui/hardware/h100/facts?facts=all")
    page.get_by_role("button", name="Accept the marked").click()
    expect(page.get_by_role("alert")).to_contain_text("no fact is marked")
    page.goto(f"{site.url}/ui/hardware/h100/facts?q=l2_size")
    page.get_by_role("link", name="l2_size").click()
    before = page.get_by_label("Value", exact=True).input_value()
    page.get_by_label("Value", exact=True).fill("banana")
    page.get_by_role("button", name="Save the correction").click()
    expect(page.get_by_role("alert")).to_contain_text("l2_size cannot be 'banana'")
    expect(page.get_by_label("Value", exact=True)).to_have_value("banana")
    page.get_by_label("Value", exact=True).fill("48 MiB")
    page.get_by_role("button", name="Save the correction").click()
    expect(page.locator(".big")).to_contain_text("48 MiB")
    page.get_by_role("button", name="Take the correction back").click()
    expect(page.locator(".big")).to_contain_text(before)
    page.goto(f"{site.url}/ui/hardware")
    page.get_by_role("link", name="Add a chip").click()
    page.get_by_label("Id", exact=True).fill("not an id")
    page.get_by_role("button", name="Add the chip").click()
    expect(page.get_by_role("alert")).to_be_visible()
    expect(page.get_by_label("Id", exact=True)).to_have_value("not an id")


def test_shortcut_opens_global_search(site: Site, page: Page) -> None:
    page.goto(f"{site.url}/ui/runs")
    page.keyboard.press("/")
    page.keyboard.type("h100")
    links = page.locator("#found").get_by_role("link")
    expect(links.first).to_be_visible()
    page.keyboard.press("ArrowDown")
    expect(links.first).to_be_focused()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Escape")
    expect(page.locator("#finder")).to_be_hidden()
    page.keyboard.press("Control+k")
    page.keyboard.type("b200")
    expect(page.get_by_label("Search chips")).to_have_value("b200")


def test_markup_in_title_is_escaped(site: Site, page: Page, tmp_path: Path) -> None:
    expect.set_options(timeout=PATIENCE)
    file = tmp_path / "title.md"
    file.write_text(f"# Title\n\nText {EVIL}.\n", encoding="utf-8")
    page.goto(f"{site.url}/ui/upload")
    page.get_by_label("Files", exact=True).set_input_files(file)
    page.get_by_text("Title and key of a single file").click()
    page.get_by_label("Title", exact=True).fill(EVIL)
    page.get_by_role("button", name="Upload").click()
    expect(page.locator("#sent").get_by_text("ready", exact=True)).to_be_visible()
    for link in (None, "Read what was read", "open and correct"):
        if link is not None:
            page.get_by_role("link", name=link).first.click()
        expect(page.get_by_text("<img src=x").first).to_be_visible()
        assert page.locator("main img").count() == 0
        assert page.locator("html").get_attribute("data-evil") is None


def pages_of(site: Site) -> list[str]:
    """One address of each page, with the present contents of the store."""

    def ids(path: str, key: str, field: str) -> str:
        return str(httpx.get(f"{site.url}{path}").json()[key][0][field])

    chip = f"/hardware/{site.chip}"
    document = ids("/documents", "documents", "id")
    passage = ids(f"/documents/{document}/passages", "passages", "id")
    job, skill = ids("/jobs", "jobs", "id"), ids("/skills", "skills", "name")
    run = ids("/runs", "runs", "id")
    symbol = ids(f"{chip}/symbols", "symbols", "id")
    fact = ids("/hardware/h100/facts", "facts", "id")
    return [
        *(
            "",
            "/hardware",
            chip,
            f"{chip}/facts?facts=all",
            f"{chip}/coverage",
            f"{chip}/documents",
        ),
        *("/search?q=h100", f"/facts/{fact}", "/retrieve?text=out+of+memory&hardware=h100"),
        *(f"{chip}/setup", f"{chip}/symbols"),
        *(f"{chip}/samples", f"{chip}/first-prompt", f"/symbols/{symbol}", "/upload", "/recipes"),
        *("/retrieve", "/retrieve?signal=memory_bound&hardware=h100", "/documents", "/no/page"),
        *(f"/documents/{document}", f"/passages/{passage}", "/jobs", f"/jobs/{job}", "/knowledge"),
        *("/skills", f"/skills/{skill}", "/runs", "/runs/new", f"/runs/{run}"),
        *(f"/runs/{run}/candidates/1", f"/runs/compare?run={run}&run={run}"),
    ]


def test_every_page_is_accessible_and_fits_phone(site: Site, page: Page) -> None:
    axe = Axe()
    wrong: list[str] = []
    for number, path in enumerate(pages_of(site)):
        # Every second page on a phone in dark mode.
        small = number % 2 == 1
        page.emulate_media(color_scheme="dark" if small else "light")
        page.set_viewport_size(DESKTOP if not small else PHONE)  # type: ignore[arg-type]
        page.goto(f"{site.url}/ui{path}")
        for violation in axe.run(page, options={"resultTypes": ["violations"]}).response[
            "violations"
        ]:
            if violation["impact"] in ("serious", "critical"):
                places = [node["html"][:150] for node in violation["nodes"][:3]]
                wrong.append(f"{path}: {violation['id']}: {places}")
        page.set_viewport_size(PHONE)  # type: ignore[arg-type]
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            wrong.append(f"{path} is wider than a phone")
    assert wrong == []


def test_menu_and_tabs_are_whole_on_a_phone(site: Site, page: Page) -> None:
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    page.goto(f"{site.url}/ui/hardware/h100")
    links = page.locator(".top nav a, .tabs a").all()
    boxes = [box for link in links if (box := link.bounding_box())]
    assert len(boxes) == len(links) > 10
    assert all(b["x"] >= 0 and b["x"] + b["width"] <= PHONE["width"] for b in boxes)
    menu = page.locator(".top nav").bounding_box()
    assert menu is not None and menu["height"] < 100  # two lines


def test_first_tab_stop_skips_to_content(site: Site, page: Page) -> None:
    page.goto(f"{site.url}/ui/hardware")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    assert re.search(r"#main$", page.url)
