"""`kernlore jobs`, and the progress output of `kernlore ingest`."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from api.cli.commands import jobs
from api.cli.commands.jobs import Pace, UploadedFile, wait_for_jobs
from api.cli.target import CommandTarget, read_settings
from api.operations import Incoming, documents
from tests.api.cli_process import COMMAND, ROOT, kernlore
from tests.catalogs import copy_data_dir, environment_of
from tests.shared import place_models

pytestmark = pytest.mark.slow(seconds=8)


def counts(**given: int) -> dict[str, int]:
    names = ("queued", "running", "ready", "partial", "failed", "embedding", "passages_done")
    return dict.fromkeys((*names, "passages"), 0) | given


# -- estimates, without a clock


def test_bar_moves_once_document_is_read() -> None:
    pace = Pace(10)
    start = pace.at(counts(queued=9, running=1), 10, 0.0)
    assert (start.stage, start.share, start.documents) == ("reading", 0.0, "0/10 files")
    read = pace.at(counts(queued=8, running=2, embedding=1, passages=40), 10, 0.5)
    assert read.share > start.share
    assert (read.stage, read.passages) == ("reading, embedding", "0/40+ passages")
    assert (read.rate, read.seconds_left) == (None, None)


def test_time_left_needs_evidence_and_counts_unread_documents() -> None:
    pace = Pace(4)
    half_read = {"queued": 2, "running": 2, "embedding": 2, "passages": 200}
    pace.at(counts(**half_read), 4, 0.0)
    pace.at(counts(**half_read, passages_done=10), 4, 1.0)
    early = pace.at(counts(**half_read, passages_done=20), 4, 2.0)
    assert early.rate == pytest.approx(10) and early.seconds_left is None
    later = pace.at(counts(**half_read, passages_done=110), 4, 11.0)
    # Four documents give 400 passages; 290 of them are left.
    assert later.seconds_left == pytest.approx(29)
    assert later.text == "0/4 files, 110/200+ passages, 10/s, 0:29 left"
    assert pace.at(counts(ready=4, passages=400, passages_done=400), 0, 40.0).share == 1.0


def test_rate_is_recent_and_bar_never_decreases() -> None:
    pace = Pace(2)
    first = counts(running=2, embedding=1, passages=100, passages_done=80)
    share = pace.at(first, 2, 0.0).share
    slow = pace.at(counts(running=2, embedding=2, passages=9000, passages_done=90), 2, 100.0)
    assert slow.share >= share
    assert slow.rate is None  # no sample within the last seconds


# -- against a data directory


class Counting(CommandTarget):
    """Counts its requests as a service would receive them."""

    def __init__(self, data: Path) -> None:
        super().__init__(read_settings(data))
        self.requests: list[str] = []

    def call(self, operation: Any, /, *args: Any, **given: Any) -> Any:
        self.requests.append(operation.name)
        return super().call(operation, *args, **given)


@pytest.fixture
def target(tmp_path: Path, model_cache: Path) -> Iterator[Counting]:
    data = place_models(tmp_path / "data", model_cache)
    opened = Counting(data)
    yield opened
    opened.close()


def entries_of(target: CommandTarget, folder: Path, group: str, number: int) -> list[UploadedFile]:
    folder.mkdir(exist_ok=True)
    entries = []
    for n in range(number):
        file = folder / f"{n}.md"
        file.write_text(f"# Part {n}\n\nPart number {n} stalls on its own.\n")
        with file.open("rb") as content:
            incoming = (Incoming(file.name, content),)
            sent = target.call(documents.upload, file=incoming, hardware=("h100",), group=group)
        entries.append(
            UploadedFile(file.name, sent["outcome"], sent["document_id"], sent["job_id"])
        )
    return entries


def test_all_files_are_sent_in_one_request(
    target: Counting, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = entries_of(target, tmp_path / "manuals", "upl_1", 12)
    target.requests.clear()
    wait_for_jobs(target, entries, group="upl_1", quiet=False)
    assert {entry.state for entry in entries} == {"ready"}
    assert set(target.requests) == {"list_jobs"}
    lines = capsys.readouterr().out.splitlines()
    assert sorted(lines) == sorted(f"ready        {n}.md  (1 passages)" for n in range(12))


def test_files_of_another_upload_are_still_watched(target: Counting, tmp_path: Path) -> None:
    mine = entries_of(target, tmp_path / "manuals", "upl_1", 3)
    entries_of(target, tmp_path / "manuals", "upl_2", 2)
    wait_for_jobs(target, mine, group="upl_1", quiet=True)
    assert {entry.state for entry in mine} == {"ready"}


def test_document_deleted_meanwhile_ends_with_reason(target: Counting, tmp_path: Path) -> None:
    entries = entries_of(target, tmp_path / "manuals", "upl_1", 2)
    target.call(documents.delete_document, str(entries[0].document_id))
    wait_for_jobs(target, entries, group="upl_1", quiet=True)
    assert [entry.state for entry in entries] == ["failed", "ready"]
    assert entries[0].error is not None and entries[0].error["code"] == "not_found"


def test_jobs_are_listed(data: Path) -> None:
    # Other tests of this module may have added jobs, for this chip and others.
    everything = kernlore("jobs", "list", "--hardware", "h100", "--json", data=data).json
    ready = everything["counts"]["ready"]
    assert ready == len(everything["jobs"]) >= 3
    shown = kernlore("jobs", "list", "--hardware", "h100", "--limit", "2", data=data)
    lines = shown.out.splitlines()
    assert lines[0] == f"0 queued, 0 running, {ready} ready, 0 partial, 0 failed"
    assert re.match(r"job +state +document +passages +began +took +problem", lines[2])
    assert all(re.search(r" ready +\S.* (\d+)/\1 +\d\d:", line) for line in lines[3:5])
    cursor = lines[-1].removeprefix("more: --cursor ")
    following = ("--hardware", "h100", "--cursor", cursor)
    rest = kernlore("jobs", "list", *following, "--json", data=data).json
    assert [job["id"] for job in rest["jobs"]] == [job["id"] for job in everything["jobs"][2:]]
    wrong = kernlore("jobs", "list", "--state", "done", "--json", data=data)
    assert (wrong.code, wrong.json["code"]) == (2, "invalid_request")


def test_failed_job_is_listed_with_its_reason(data: Path, tmp_path: Path) -> None:
    own = tmp_path / "data"
    copy_data_dir(data, own)
    (tmp_path / "nothing.md").write_text("---\ntitle: Nothing\n---\n")
    assert kernlore("ingest", tmp_path / "nothing.md", data=own).code == 1
    shown = kernlore("jobs", "list", "--state", "failed", data=own).out
    assert "1 failed" in shown and "nothing to read in it" in shown and "leave it out" in shown


SHEET = """# Orbis-3 sheet

## Timing

The vexp instruction takes 14 cycles.

## Memory

| Property | Orbis-3 |
|---|---|
| Memory bandwidth | 820 GB/s |

The memory of the chip is refreshed by its own controller while kernels run beside it.
"""


def test_undecided_items_of_a_new_version_are_reported(tmp_path: Path, model_cache: Path) -> None:
    data, sheet = place_models(tmp_path / "data", model_cache), tmp_path / "sheet.md"
    (tmp_path / "orbis.toml").write_text('id = "orbis-3"\nname = "Orbis-3"\n')

    def said(*command: str | Path) -> str:
        ran = kernlore(*command, data=data)
        assert ran.code == 0, ran.err
        return ran.out

    said("hardware", "add", tmp_path / "orbis.toml")
    sheet.write_text(SHEET)
    said("ingest", sheet, "--hardware", "orbis-3")
    [document] = kernlore("documents", "list", "--json", data=data).json
    passages = kernlore("documents", "passages", document["id"], "--json", data=data).json
    vexp = next(p["id"] for p in passages if "vexp" in p["text"])
    said("documents", "correct", vexp, "--text", "The vexp instruction takes 12 cycles.")
    said("hardware", "facts", "orbis-3", "--accept-all")
    sheet.write_text(SHEET.replace("14 cycles", "15 cycles").replace("820", "860"))
    reported = said("ingest", sheet, "--hardware", "orbis-3")
    unfit = "1 correction no longer fits this version: text 'The vexp instruction takes 12 cycles.'"
    accepted = "the accepted 820 GB/s is from version 1 of 'Orbis-3 sheet'; version 2 says 860 GB/s"
    job = kernlore("jobs", "list", "--json", data=data).json["jobs"][0]["id"]
    for text in (reported, said("jobs", "list"), said("jobs", "show", job)):
        assert unfit in text and f"memory_bandwidth of orbis-3: {accepted}" in text
        assert "{" not in text
    shown = said("documents", "show", document["id"])
    assert "1 correction no longer fits this version" in shown and "{" not in shown
    assert "        The vexp instruction takes 12 cycles." in shown
    [lost] = re.findall(r"\((cor_\w+)\):", shown)
    assert said("documents", "drop-correction", document["id"], lost) == f"dropped {lost}\n"
    assert "no longer fits" not in said("documents", "show", document["id"])
    facts = said("hardware", "facts", "orbis-3")
    assert facts.startswith("memory_bandwidth = 820 GB/s") and accepted in facts
    assert "sources disagree" in facts and "860 GB/s (Orbis-3 sheet" in facts
    [take] = re.findall(r"--accept (\S+) to take it over", facts)
    said("hardware", "facts", "orbis-3", "--accept", take)
    facts = said("hardware", "facts", "orbis-3")
    assert facts.startswith("memory_bandwidth = 860 GB/s") and "820" not in facts
    copy = tmp_path / "sheet_revC.md"
    copy.write_text(sheet.read_text() + "\n## Appendix\n\nA last line.\n")
    said("ingest", copy, "--hardware", "orbis-3")
    assert "% of its text with 'Orbis-3 sheet'" in said("jobs", "list")
    deleted = said("documents", "delete", document["id"], "--yes")
    assert "2 facts that were read from it went too, 1 of them accepted" in deleted
    assert "1 of the accepted values hold still: another source states them" in deleted


def test_terminal_gets_bar_and_permanent_lines(tmp_path: Path, data: Path) -> None:
    own = tmp_path / "data"
    copy_data_dir(data, own)
    manual = tmp_path / "manual.md"
    manual.write_text("# Kea\n\n" + "\n\n".join(f"## K{n}\n\nKea {n} waits." for n in range(60)))
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "ingest", str(manual), "--category", "guidance", "--data-dir", str(own)],
        cwd=ROOT,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "160"} | environment_of(own),
        stdout=follower,
        stderr=subprocess.DEVNULL,
    )
    os.close(follower)
    shown = b""
    try:
        while part := os.read(leader, 65_536):
            shown += part
    except OSError:  # Linux: the other end is closed
        pass
    os.close(leader)
    assert process.wait(timeout=60) == 0
    text = shown.decode()
    assert "0/1 files" in text and re.search(r"\d+/60 passages", text)
    assert "ready        manual.md  (60 passages)" in text


def test_shown_state_starts_with_its_filter_name() -> None:
    job: dict[str, Any] = dict.fromkeys(("document", "passages", "started_at", "seconds", "error"))
    job |= {"id": "job_1", "state": "running", "stage": "embedding"}
    assert jobs._row(job)[1] == "running: embedding"
    assert jobs._row({**job, "state": "queued", "stage": None})[1] == "queued"


def test_file_with_the_bytes_of_a_document_names_it() -> None:
    file = UploadedFile("b.md", "duplicate_of", document_id="doc_1")
    assert re.search(r"duplicate_of +b\.md .*doc_1.*same bytes", jobs.file_text(file))
