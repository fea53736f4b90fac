"""Every page over a filled store: it answers, shows the records, and works without a mouse."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from fastapi import FastAPI
from fastapi.testclient import TestClient
from httpx2 import Response

from api.http.observability import Metrics, RequestLog
from api.web.pages import markdown, page_router
from kb.settings import Settings
from tests.api.conftest import URL, finished, upload
from tests.api.web.conftest import CHIP, EVIL, OTHER_RUN, RUN, Filled
from tests.places import ROOT

SCRIPT = {"hx-request": "true"}
FORM = {"content-type": "application/x-www-form-urlencoded", "origin": URL}


def paths(filled: Filled) -> Iterator[str]:
    yield from ("", "/", "/hardware", "/hardware?q=h100", "/hardware/h100", "/upload", "/recipes")
    yield from (f"/hardware/{CHIP}", f"/hardware/{CHIP}/facts?facts=proposed")
    yield from (
        "/hardware/h100/facts?facts=all",
        "/hardware/h100/symbols",
        "/hardware/h100/symbols?q=wgmma",
        "/hardware/h100/samples",
    )
    yield from ("/hardware/h100/first-prompt", f"/hardware/{CHIP}/first-prompt?op=softmax")
    yield from ("/retrieve", "/retrieve?signal=memory_bound&hardware=h100")
    yield from (f"/retrieve?query=shared+memory&hardware={CHIP}", "/documents", "/documents?q=zzz")
    yield from (f"/documents?hardware={CHIP}&category=hardware", f"/documents/{filled.document}")
    yield from (f"/passages/{filled.passage}", "/skills", f"/skills/{filled.skill}")
    yield from ("/skills?tier=learned&state=candidate,suspect&signal=memory_bound&q=tiles",)
    yield from ("/runs", f"/runs/{RUN}", f"/runs/{RUN}/candidates/0", f"/runs/{RUN}/candidates/2")
    yield from ("/knowledge", f"/knowledge?path=hardware/{CHIP}", "/jobs", "/jobs?state=failed")
    yield from (f"/jobs/{filled.job}", f"/jobs/{filled.job}/row", "/runs/new?hardware=h100")
    yield from (f"/hardware/{CHIP}/setup", f"/hardware/{CHIP}/symbols?status=proposed")
    yield from (f"/runs/compare?run={RUN}&run={OTHER_RUN}", "/runs?q=pages&state=running")
    yield from (f"/passages/{filled.on_page}", f"/passages/{filled.on_page}/page")
    yield from (f"/symbols/{filled.symbol}", "/knowledge/validity")
    yield from ("/knowledge/validity?state=holds&kind=signature&tool=triton",)
    yield from ("/retrieve?query=tl.dot&hardware=h100&versions=triton%3D3.6",)


def soup(answer: Response, status: int = 200) -> BeautifulSoup:
    assert answer.status_code == status, answer.text[:2000]
    assert answer.headers["content-type"].startswith("text/html")
    return BeautifulSoup(answer.text, "lxml")


PARTS = ("/row",)  # of a page, without a frame


@pytest.fixture(scope="module")
def pages(filled: Filled) -> dict[str, BeautifulSoup]:
    return {path: soup(filled.client.get(f"/ui{path}")) for path in paths(filled)}


def test_every_page_answers_and_has_labels(pages: dict[str, BeautifulSoup]) -> None:
    for path, page in pages.items():
        if path.endswith(PARTS):
            continue
        assert page.html is not None and page.html["lang"] == "en", path
        assert len(page.find_all("h1")) == 1, path
        assert page.title is not None and page.title.text.strip(" ·") != "Kernlore", path
        ids = [str(tag["id"]) for tag in page.find_all(id=True)]
        assert len(ids) == len(set(ids)), path
        labelled = {str(label["for"]) for label in page.find_all("label")}
        for field in page.find_all(["input", "select", "textarea"]):
            assert field.get("aria-label") or field.get("id") in labelled, f"{path}: {field}"
        for image in page.find_all("img"):
            assert image.get("alt"), path


def test_upload_text_is_inert(pages: dict[str, BeautifulSoup]) -> None:
    shown = 0
    for path, page in pages.items():
        assert not page.find_all("img", onerror=True), path
        for script in page.find_all("script"):
            assert not script.text and str(script["src"]).startswith("/ui/static/"), path
        assert not [t for t in page.find_all(True) if any(a.startswith("on") for a in t.attrs)]
        assert not [t for t in page.find_all(True) if t.get("style") or t.name == "style"], path
        shown += EVIL in page.text
    assert shown >= 8  # present as text


def test_pages_allow_no_foreign_script_and_no_frame(filled: Filled) -> None:
    for path in ("/ui", "/ui/no/such/page", "/ui/documents/doc_0123456789abcdef"):
        policy = filled.client.get(path).headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy


def test_every_link_of_a_page_resolves(filled: Filled, pages: dict[str, BeautifulSoup]) -> None:
    links: set[str] = set()
    for path, page in pages.items():
        here = f"/ui{path}".partition("?")[0]
        for tag in page.find_all(["a", "link", "img"]):
            target = str(tag.get("href") or tag.get("src")).partition("#")[0]
            # The download writes a report, which takes seconds; another test covers it.
            if target and not target.startswith("http") and not target.endswith("/download"):
                links.add(here + target if target.startswith("?") else target)
    kinds = {re.sub(r"\d+|[0-9a-f]{16}|(?<=[=/])[\w-]{9,}", "*", link): link for link in links}
    assert len(kinds) > 40
    for link in kinds.values():
        assert filled.client.get(link).status_code == 200, link


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/no/such/page", 404, "The menu above leads to every page."),
        ("/hardware/h10", 404, "h100"),
        ("/documents/doc_0123456789abcdef", 404, "no document"),
        ("/documents?category=nonsense", 400, "guidance"),
        ("/documents?number=nonsense", 400, "number"),
        ("/skills/absent", 404, "absent"),
        ("/runs/absent", 404, "absent"),
        ("/retrieve?signal=nonsense", 404, "nonsense"),
        ("/retrieve?metrics=lonely", 400, "its name, a space, its value"),
        ("/jobs?state=nonsense", 400, "state"),
        ("/documents?q=%00", 400, "NUL"),
        ("/runs/compare", 400, "Mark 2 to 6 runs"),
        ("/runs/absent/live", 404, "absent"),
        ("/symbols/sym_0123456789abcdef", 404, "no symbol"),
        ("/passages/psg_0123456789abcdef/page", 404, "no passage"),
    ],
)
def test_error_page_has_hint(filled: Filled, path: str, status: int, message: str) -> None:
    page = soup(filled.client.get(f"/ui{path}"), status)
    alert = page.find(role="alert")
    assert alert is not None and message in alert.text


def test_form_from_foreign_origin_is_refused(filled: Filled) -> None:
    headers = {**FORM, "origin": "http://evil.example"}
    path = f"/ui/documents/{filled.document}/delete"
    assert filled.client.post(path, content="sure=yes", headers=headers).status_code == 403
    assert filled.client.get(f"/documents/{filled.document}").status_code == 200


def test_question_becomes_a_link_and_long_log_answer(filled: Filled) -> None:
    sent = {"signal": "memory_bound", "hardware": "h100", "log": ""}
    answer = filled.client.post("/ui/retrieve", data=sent, follow_redirects=False)
    assert answer.status_code == 303
    assert answer.headers["location"] == "/ui/retrieve?signal=memory_bound&hardware=h100#answer"
    page = soup(filled.client.get(answer.headers["location"]))
    given = {"signal": "memory_bound", "hardware": "h100"}
    context = filled.client.post("/retrieve", json=given).json()["context"]
    assert context.strip() in page.text and '"signal": "memory_bound"' in page.text
    error = "ptxas error : Entry function uses too much shared data (0x41000 bytes, 0x38c00 max)"
    log = f"{error}\n" + "line of a log\n" * 2000
    page = soup(filled.client.post("/ui/retrieve", data={"log": log, "hardware": "h100"}))
    link = page.find("a", string="Link to this answer")
    again = soup(filled.client.get(str(link["href"])))  # type: ignore[index]
    mark = again.find("mark")
    assert mark is not None and mark.text == error


def lines_of_failures() -> list[str]:
    """A line of each signal and kind of failure."""
    table = Path(__file__).parents[2] / "retrieval/signature_lines.tsv"
    rows = [row.split("\t") for row in table.read_text(encoding="utf-8").splitlines()]
    return list({tuple(row[:2]): row[2] for row in rows if not row[0].startswith("#")}.values())


def test_any_log_is_answered_with_and_without_chip(filled: Filled) -> None:
    """Without a chip the limits of moves are unknown."""
    lines = lines_of_failures()
    assert len(lines) > 20
    for line in lines:
        for chip in ("", "h100"):
            given = {"text": f"error: {line}\n", "hardware": chip}
            soup(filled.client.get("/ui/retrieve", params=given))


def test_chip_of_a_log_is_used(filled: Filled) -> None:
    session = "$ nvidia-smi -L\nNVIDIA H100 80GB HBM3\nRuntimeError: out of resource: shared memory"
    page = soup(filled.client.get("/ui/retrieve", params={"text": session}))
    assert "The text names h100" in page.text
    chosen = page.select_one("#f-hardware option[selected]")
    assert chosen is not None and chosen["value"] == "h100"
    two = soup(filled.client.get("/ui/retrieve", params={"text": f"{session}, not an A100"}))
    assert two.select_one("#f-hardware option[selected]") is None
    hints = filled.client.post("/retrieve", json={"log": session}).json()["hints"]
    assert hints[0].startswith("The log names h100.")


def test_notes_of_program_profile_precede_moves(filled: Filled) -> None:
    times = "Time (%)  Total Time (ns)  Num Calls  Name\n"
    text = (
        f" ** CUDA API Summary (cuda_api_sum):\n\n {times} ---  ---  ---  ---\n"
        " 100.0  4,812,330,118  400  cudaMemcpy\n"
    )
    page = soup(filled.client.get("/ui/retrieve", params={"text": text, "hardware": "h100"}))
    first = page.select_one(".actions-list li")
    assert first is not None and "Copies take 100 % of the host's time" in first.text
    named = soup(filled.client.get("/ui/retrieve", params={"text": "bank_conflict"}))
    assert "The closest passages" not in named.text


def test_internal_error_page_has_log_entry_id() -> None:
    router = page_router("/ui/broken")
    router.get("")(lambda: [][0])
    app = FastAPI()
    app.include_router(router)
    app.add_middleware(RequestLog, metrics=Metrics())
    answer = TestClient(app, raise_server_exceptions=False).get("/ui/broken")
    page = soup(answer, 500)
    assert answer.headers["x-request-id"] in page.text


def test_files_are_uploaded_watched_and_deleted(filled: Filled) -> None:
    files = [("file", ("one.md", b"# One\n\nText of one.\n"))]
    page = soup(filled.client.post("/ui/upload", files=files, data={"hardware": CHIP}))
    assert page.find("progress") or "next" in page.text or "passages" in page.text
    link = page.find("a", string="Open the document")
    assert link is not None
    document = str(link["href"])
    several = [*files, ("file", ("two.md", b"")), ("file", ("three.md", b"# Three\n\nText.\n"))]
    page = soup(filled.client.post("/ui/upload", files=several, data={"hardware": CHIP}))
    assert "unchanged" in page.text and "rejected" in page.text
    assert page.find("a", string="Watch all of them")
    answer = filled.client.post(f"{document}/delete", data={"other": "1"})
    assert "Tick the box" in soup(answer, 400).text
    soup(filled.client.post(f"{document}/delete", data={"sure": "yes"}))
    soup(filled.client.get(document), 404)


def test_job_page_shows_what_its_document_replaces(filled: Filled) -> None:
    data = {"hardware": CHIP, "source_key": "pages/colours", "replace": "yes"}
    sheet = "| Quantity | Value | Unit |\n|---|---|---|\n| Odd links | 7 | |\n"
    texts = ("# Umber book\n\nText about brown earth and its colours.\n", "# Sienna\n\n" + sheet)
    for text in texts:
        sent = filled.client.post("/ui/upload", files=[("file", ("a.md", text))], data=data)
        job = str(sent.url).rpartition("/")[2]
        finished(filled.client, job)
    page = soup(filled.client.get(f"/ui/jobs/{job}"))
    assert "replaces 'Umber book', with which it shares no text" in page.text
    assert "Odd links: 7" in page.text
    document = filled.client.get(f"/jobs/{job}").json()["document_id"]
    filled.client.delete(f"/documents/{document}")


def test_passage_is_corrected(filled: Filled) -> None:
    path = f"/passages/{filled.passage}"
    before = filled.client.get(path).json()
    tags = ["topic:memory", "signal:memory_bound"]
    text = before["text"].replace("\n", "\r\n")
    sent = {"text": text, "tags": ", ".join(tags), "hardware": CHIP}
    soup(filled.client.post(f"/ui{path}", data=sent))
    after = filled.client.get(path).json()
    assert after["text"] == before["text"]
    assert sorted(f"{t['kind']}:{t['value']}" for t in after["tags"]) == sorted(tags)
    soup(filled.client.post(f"/ui{path}", data={**sent, "tags": "memory"}), 400)


def test_proposed_facts_are_decided(filled: Filled) -> None:
    path = f"/hardware/{CHIP}/facts"
    proposed = filled.client.get(f"{path}?status=proposed").json()["facts"]
    assert proposed, "the manual's table proposes facts"
    sent = {"status": "accepted", "ids": [proposed[0]["id"]]}
    soup(filled.client.post(f"/ui{path}", data=sent))
    accepted = filled.client.get(f"{path}?status=accepted").json()["facts"]
    assert [fact["id"] for fact in accepted] == [proposed[0]["id"]]
    page = soup(filled.client.post(f"/ui{path}", data={"status": "accepted"}), 400)
    assert page.find(role="alert")


FEATURES = """# Lathe features

## Features

| Feature | | Details |
|---|---|---|
| Core Count | | 2 cores |
| Frequency | | 400MHz |
| On-Chip SRAM | | 8MiB in all |
| Dividers | | 3 dividers |
"""


def test_rows_that_gave_no_fact_become_facts_by_hand(filled: Filled) -> None:
    client, chip = filled.client, "lathe-x1"
    client.post("/hardware", json={"id": chip})
    sent = upload(client, "features.md", FEATURES.encode(), hardware=chip).json()
    finished(client, sent["job_id"])
    path = f"/hardware/{chip}/facts"
    listed = client.get(f"{path}?status=proposed").json()
    assert {f["key"]: f["value"] for f in listed["facts"]} == {
        "compute_units": 2,
        "clock_boost": 4e8,
    }
    assert [(row["row"], row["text"]) for row in listed["not_read"]] == [
        ("On-Chip SRAM: 8MiB in all", "8MiB"),
        ("Dividers: 3 dividers", "3"),
    ]
    opened = soup(client.get(f"/ui{path}"))
    assert opened.find("a", attrs={"aria-current": "true"}, string="Proposed (2)")
    for view in ("effective", "accepted", "rejected", "all"):
        shown = soup(client.get(f"/ui{path}?facts={view}"))
        assert shown.find("form", action=re.compile("/facts/new$"))
        assert shown.find("a", string="Rows that gave no fact (2)")
    page = soup(client.get(f"/ui{path}?facts=proposed"))
    [link] = page.find_all("a", attrs={"aria-label": "Make a fact of Dividers: 3 dividers"})
    shown = soup(client.get(f"/ui{path}{str(link['href']).partition('#')[0]}"))
    form = shown.find("form", action=re.compile("/facts/new$"))
    assert form is not None
    given = {str(i["name"]): str(i["value"]) for i in form.find_all("input")}
    assert given["key"] == "dividers" and given["text"] == "3"
    soup(client.post(f"/ui{path}/new", data=given))
    [fact] = [f for f in client.get(path).json()["facts"] if f["key"] == "dividers"]
    assert (fact["value"], fact["unit"], fact["origin"]) == (3.0, "count", "person")
    assert fact["document_id"] == sent["document_id"]
    left = client.get(f"{path}?status=proposed").json()["not_read"]
    assert [row["row"] for row in left] == ["On-Chip SRAM: 8MiB in all"]
    wrong = soup(client.post(f"/ui{path}/new", data={"key": "l2_size", "text": "8 GHz"}), 400)
    assert "l2_size cannot be" in wrong.text
    soup(client.post(f"/ui{path}/new", data={"key": "clock_bost", "text": "1"}), 400)
    by_hand = {"key": "l2_size", "text": "8 MiB"}
    assert client.post(path, json=by_hand).json()["value"] == 8 * 2**20


TWO_PRODUCTS = """# Guide to BORE78000 and BORE78002

## Limits of BORE78002 networks

The data memory of 1,280 KiB is split into 16 instances of 80 KiB each.

## Limits of BORE78000 networks

The data memory of 512 KiB is split into 16 instances of 32 KiB each.

## Data memory

The BORE78002 has data memory instances of 80 KiB in addition to its scratch memory.
"""


def test_section_about_another_product_does_not_lead_answers_about_the_chip(
    filled: Filled,
) -> None:
    client, chip = filled.client, "bore78000"
    client.post("/hardware", json={"id": chip})
    sent = upload(client, "two.md", TWO_PRODUCTS.encode(), hardware=chip).json()
    finished(client, sent["job_id"])

    def texts(question: str) -> list[str]:
        asked = {"query": question, "hardware": chip, "k": 8}
        found = client.post("/retrieve", json=asked).json()["excerpts"]
        return [e["text"] for e in found if e["document"]["id"] == sent["document_id"]]

    own = texts("How large is one data memory instance?")
    assert "32 KiB" in own[0]
    assert "80 KiB" in texts("How large is one data memory instance of the BORE78002?")[0]


def test_facts_page_lists_what_probes_contradict(filled: Filled, settings: Settings) -> None:
    folder = settings.knowledge_dir / "probes"
    shutil.copytree(ROOT / "hw_manuals" / "probes", folder)
    try:
        counts = filled.client.get("/hardware/h200/probes").json()["counts"]
        text = " ".join(soup(filled.client.get("/ui/hardware/h200/facts")).get_text().split())
    finally:
        shutil.rmtree(folder)
    assert f"{counts['contradicted']} contradicted, {counts['confirmed']} confirmed" in text
    assert "memory_size_by_driver: states" in text
    assert "kernlore hardware probe h200, NVIDIA H200" in text, "both sources are named"


REVISED = """# Revised manual

## Timing

The texp instruction takes 14 cycles.

## Power

| Property | Revised X1 |
|---|---|
| TDP | 410 W |
"""


def test_undecided_items_of_a_new_version_are_on_pages(filled: Filled) -> None:
    client, chip = filled.client, "revised-x1"

    def send(text: str) -> str:
        sent = upload(client, "revised.md", text.encode(), hardware=chip).json()
        finished(client, sent["job_id"])
        return str(sent["document_id"])

    client.post("/hardware", json={"id": chip, "name": "Revised X1"})
    document = send(REVISED)
    passages = client.get(f"/documents/{document}/passages").json()["passages"]
    texp = next(row["id"] for row in passages if "texp" in row["text"])
    client.patch(f"/passages/{texp}", json={"text": "The texp takes 12 cycles.", "actor": "ann"})
    client.patch(f"/hardware/{chip}/facts", json={"status": "accepted", "where": {}})
    assert "no longer" not in soup(client.get("/ui")).text
    send(REVISED.replace("14 cycles", "15 cycles").replace("410", "420"))
    home = soup(client.get("/ui"))
    assert "1 correction no longer fits the new version of Revised manual" in home.text
    assert "1 accepted facts of Revised X1 are from a replaced version" in home.text
    old, new = "the accepted 410 W is from version 1", "version 2 says 420 W"
    shown = soup(client.get(f"/ui/hardware/{chip}/facts")).text
    assert f"power of {chip}: {old} of 'Revised manual'; {new}" in shown
    assert "1 correction no longer fits this version" in soup(client.get("/ui/jobs")).text
    page = soup(client.get(f"/ui/documents/{document}"))
    assert "The texp takes 12 cycles." in page.text and "{'id'" not in page.text
    [form] = page.find_all("form", action=re.compile("/drop$"))
    [unfit] = client.get(f"/documents/{document}").json()["corrections_unfit"]
    route = f"/documents/{document}/corrections/{unfit['id']}"
    assert client.delete(f"/documents/{document}/corrections/cor_0").status_code == 404
    assert client.delete(route).json()["dropped"] is True
    assert client.delete(route).status_code == 404
    page = soup(client.get(f"/ui/documents/{document}"))
    assert "no longer fits" not in page.text and "no longer fits" not in client.get("/ui").text
    soup(client.post(str(form["action"])), 404)
    client.delete(f"/documents/{document}")


def test_skill_is_quarantined_with_reason(filled: Filled) -> None:
    path = f"/skills/{filled.skill}"
    refused = filled.client.post(f"/ui{path}", data={"state": "quarantined", "actor": "ann"})
    assert "reason" in soup(refused, 400).text
    sent = {"state": "active", "actor": "ann", "reason": "I know it."}
    page = soup(filled.client.post(f"/ui{path}", data=sent), 409)
    stored = [page.find(id=f"f-{name}") for name in ("actor", "reason")]
    assert [field and field["value"] for field in stored] == ["ann", "I know it."]
    tick = page.find("label", attrs={"for": "f-force"})
    alert = page.find("div", role="alert")
    assert tick is not None and alert is not None and tick.text in alert.text
    curated = filled.client.get("/skills?tier=curated&state=active").json()["skills"][0]["name"]
    assert soup(filled.client.get(f"/ui/skills/{curated}")).find(id="f-force") is None
    sent = {"state": "quarantined", "actor": "ann", "reason": "It misled a search."}
    page = soup(filled.client.post(f"/ui{path}", data=sent))
    assert "It misled a search." in page.text and page.find("button", string="Restore")


def test_list_counts_chips_and_offers_families_of_a_new_one(filled: Filled) -> None:
    page = soup(filled.client.get("/ui/hardware?q=hopper&add=true"))
    assert page.select_one("details#add[open]") is not None
    chips = filled.client.get("/hardware").json()["hardware"]
    assert len(page.select("#f-parent option")) == len(chips) + 1  # not those of the search alone
    assert re.search(r"\d+ chips, and \d+ families and vendors", page.text)


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("see :ref:`NeuronCore-v2 <arch_x>` and :doc:`guide`", "see NeuronCore-v2 and guide"),
        (r"a call (\ ``nki.isa``\ )", "a call (nki.isa)"),
        ("the role `:ref:` and a:b:`c`", "the role :ref: and a:b:c"),
    ],
)
def test_roles_of_a_passage_are_text(written: str, shown: str) -> None:
    assert BeautifulSoup(markdown(written), "html.parser").text.strip() == shown


def test_chip_is_added(filled: Filled) -> None:
    page = soup(
        filled.client.post("/ui/hardware", data={"id": "pages-x2", "languages": "a-c, b-c"})
    )
    assert page.h1 is not None and "pages-x2" in page.h1.text
    assert filled.client.get("/hardware/pages-x2").json()["languages"] == ["a-c", "b-c"]
    soup(filled.client.post("/ui/hardware", data={"id": "Not An Id"}), 400)


def test_candidate_shows_its_change_and_conversation(filled: Filled) -> None:
    page = soup(filled.client.get(f"/ui/runs/{RUN}/candidates/2"))
    assert [t.text for t in page.select(".diff .add")] == ["+int b;"]
    assert [t.text for t in page.select(".diff .cut")] == ["-int a;"]
    spoken = [pre.text for pre in page.select("details pre")]
    assert any("Reply 2" in text for text in spoken), spoken
    assert any("the model did not answer" in text for text in spoken), spoken


def test_page_image_marks_passage(filled: Filled) -> None:
    shown = filled.client.get(f"/passages/{filled.on_page}").json()
    answer = filled.client.get(f"/ui/passages/{filled.on_page}/page", headers=SCRIPT)
    drawing = BeautifulSoup(answer.text, "lxml").svg
    assert drawing is not None and drawing.rect is not None and drawing.image is not None
    assert float(str(drawing.rect["y"])) == pytest.approx(shown["boxes"][0]["y0"] - 3)
    picture = filled.client.get(str(drawing.image["href"]))
    assert picture.headers["content-type"] == "image/png" and picture.content[1:4] == b"PNG"
    assert len(picture.content) < 500_000
    document = shown["document"]["id"]
    soup(filled.client.get(f"/ui/documents/{document}/pages/7.png"), 404)
    soup(filled.client.get(f"/ui/documents/{filled.document}/pages/0.png"), 404)


def test_symbol_is_corrected(filled: Filled) -> None:
    path = f"/ui/symbols/{filled.symbol}"
    page = soup(filled.client.get(path))
    form = {str(field["name"]): field.text.strip("\n") for field in page.find_all("textarea")}
    assert page.find("span", string="corrected") is None
    assert soup(filled.client.post(path, data=form)).find("span", string="corrected") is None
    fixed = {**form, "meaning": "Waits for its tile.", "limits": "one at a time\r\nof 4 KiB"}
    page = soup(filled.client.post(path, data=fixed))
    assert "Waits for its tile." in page.text and "one at a time; of 4 KiB" in page.text
    assert page.find("span", string="corrected")


def test_description_is_replaced_or_refused_next_to_its_text(filled: Filled) -> None:
    path = f"/ui/hardware/{CHIP}/description"
    page = soup(filled.client.post(path, data={"description": 'id = "other-1"'}), 400)
    alert, field = page.find(role="alert"), page.find("textarea")
    assert alert is not None and field is not None and "other-1" in field.text
    page = soup(filled.client.post(path, data={"description": "id = "}), 400)
    assert page.find(role="alert")
    text = soup(filled.client.get(f"/ui/hardware/{CHIP}/setup")).find("textarea")
    assert text is not None
    filled.client.post(path, data={"description": text.text.strip()})
    assert filled.client.get(f"/hardware/{CHIP}").json()["languages"] == ["pages-c"]


def test_run_is_watched_with_candidates_appearing(filled: Filled) -> None:
    part = filled.client.get(f"/ui/runs/{RUN}/live?after=1", headers=SCRIPT)
    added = BeautifulSoup(part.text, "lxml").find_all("ul", attrs={"hx-swap-oob": True})
    assert [str(tag["hx-swap-oob"]) for tag in added] == ["beforeend:#c1"]
    whole = soup(filled.client.get(f"/ui/runs/{RUN}"))
    assert whole.select_one("#c0 > #n1 > #c1 > #n2") is not None
    node = filled.client.get(f"/ui/runs/{RUN}/candidates/2", headers=SCRIPT)
    assert "<html" not in node.text and "+int b;" in node.text


def test_refused_run_has_reason_and_orphaned_run_is_cancelled(filled: Filled) -> None:
    client = filled.client
    assert "no problem was chosen" in soup(client.post("/ui/runs", data={"name": "x"}), 400).text
    sent = {"problem": "softmax", "candidates": "many"}
    assert "candidates is no number" in soup(client.post("/ui/runs", data=sent), 400).text
    sent = {"source": "class Nothing: ...", "hardware": CHIP, "name": "a/b"}
    assert soup(client.post("/ui/runs", data=sent), 400).find(role="alert")
    assert client.get(f"/runs/{OTHER_RUN}").json()["state"] == "running"
    page = soup(client.post(f"/ui/runs/{OTHER_RUN}/cancel", data={"x": "1"}))
    assert page.find("span", string="cancelled")


def test_long_list_is_paged_in_store(filled: Filled) -> None:
    everything = [row["name"] for row in filled.client.get("/skills").json()["skills"]]
    listed: list[str] = []
    for number in range(1, len(everything) // 24 + 2):
        page = soup(filled.client.get(f"/ui/skills?number={number}"))
        assert f"{len(everything)} in all" in page.text
        listed += [str(link.text) for link in page.select("ul.cards h2 a")]
    assert len(everything) > 50 and listed == sorted(everything)
    page = soup(filled.client.get("/ui/documents?q=pages+PDF"))
    assert "1 in all" in page.text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plainwords.txt", "The talon of the pages chip waits for its gate before each load."),
        ("plainrows.csv", "parameter,value\ntalon gates,12\n"),
    ],
)
def test_document_without_headings_has_pages_with_link_texts(
    filled: Filled, name: str, text: str
) -> None:
    sent = upload(filled.client, name, text.encode(), hardware=CHIP).json()
    assert finished(filled.client, sent["job_id"])["state"] == "ready"
    document = f"/documents/{sent['document_id']}"
    (passage, *_) = filled.client.get(f"{document}/passages").json()["passages"]
    assert passage["section"]["path"] == []
    requested = f"/retrieve?query=talon+gate&hardware={CHIP}"
    for path in (f"/passages/{passage['id']}", document, requested):
        page = soup(filled.client.get(f"/ui{path}"))
        assert page.title is not None and page.title.text.strip(" ·") != "Kernlore", path
        for place in page.find_all(["a", "h1", "h2", "h3"]):
            assert place.text.strip(" .0123456789"), f"{path}: {place}"


def test_chip_is_removed_from_its_page(filled: Filled) -> None:
    filled.client.post("/hardware", json={"id": "gone-1"})
    page = soup(filled.client.get("/ui/hardware/gone-1"))
    form = page.find("form", action="/ui/hardware/gone-1/remove")
    assert form is not None
    answer = filled.client.post("/ui/hardware/gone-1/remove", data={"documents": "yes"})
    assert "Tick the box" in soup(answer, 400).text
    soup(filled.client.post("/ui/hardware/gone-1/remove", data={"sure": "yes"}))
    soup(filled.client.get("/ui/hardware/gone-1"), 404)
    assert "/h100/remove" not in filled.client.get("/ui/hardware/h100").text


def test_untimed_kernel_has_its_rough_ratio(filled: Filled) -> None:
    rough = "roughly 20x (not confirmed: the processors were busy)"
    listed = soup(filled.client.get(f"/ui/runs/{RUN}"))
    assert [tag.text for tag in listed.select(f'[title="{rough}"]')] == ["~20x"]
    assert listed.select_one("svg circle.rough") and listed.select_one("svg path.wrong")
    page = soup(filled.client.get(f"/ui/runs/{RUN}/candidates/2"))
    assert rough in page.text and "about 12 us a call, reference 240 us" in page.text
    assert "Not confirmed" in page.text
    assert "Not confirmed" not in soup(filled.client.get(f"/ui/runs/{RUN}/candidates/1")).text
