"""Times and sizes of the web pages over a large store.

    python -m benchmarks.knowledge.pages DATA_DIR --skills 5000 --runs 500

Adds copies of the stored skills and of one run to DATA_DIR until it has so many (documents:
`benchmarks.retrieval.grown_store`), starts a service on it and gets every page. A time is the
median of `--repeats` requests after a first one, whose time is shown too. The processor time is
that of the service, the mean of these requests: other programs on the machine hardly change it.
The size is that of the HTML. Every page also has the stylesheet and the scripts, once for all.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import sqlalchemy as sa

from api.cli.target import read_settings
from api.services import Services, open_services
from benchmarks.report import machine, say, table, write_result
from benchmarks.service import Service, service_at, wait_until_ready
from kb.catalog import tables as t
from kb.ids import new_id

RUN = {"problem": "map_id", "hardware": "auto", "goal": {"language": "cpp", "candidates": 6}}
MOST_MS, MOST_BYTES = 150.0, 300_000


def copy_rows(services: Services, root: sa.Table, parts: Mapping[str, sa.Table], most: int) -> None:
    """Copy the rows of `root`, with their rows in other tables by the column that names them,
    until there are `most`.
    """
    with services.catalog.write() as connection:
        rows = [dict(row) for row in connection.execute(sa.select(root)).mappings()]
        below = {
            name: [dict(row) for row in connection.execute(sa.select(part)).mappings()]
            for name, part in parts.items()
        }
        for number in range(most - len(rows)):
            row = rows[number % len(rows)]
            fresh = new_id(str(row["id"]).partition("_")[0])
            changes: dict[str, Any] = {"id": fresh}
            changes |= {"name": f"{row['name']}-{number}"} if "name" in row else {}
            if "settings" in row:
                changes["settings"] = {**row["settings"], "id": fresh}
            connection.execute(root.insert().values(row | changes))
            for name, part in parts.items():
                owned = [r for r in below[name] if r[name] == row["id"]]
                copied = [r | {name: fresh} | _own_id(r) for r in owned]
                if copied:
                    connection.execute(part.insert(), copied)


def _own_id(row: Mapping[str, Any]) -> dict[str, str]:
    return {"id": new_id(str(row["id"]).partition("_")[0])} if "id" in row else {}


def seed(data_dir: Path, skills: int, runs: int) -> None:
    """Fill the store. Its first run is a real one."""
    with closing(open_services(read_settings(data_dir=data_dir))) as services:
        copy_rows(services, t.skills, {"skill_id": t.skill_scopes}, skills)
        with services.catalog.read() as connection:
            ran = connection.execute(sa.select(sa.func.count()).select_from(t.runs)).scalar_one()
    if not ran:
        with service_at(None, data_dir) as service:
            wait_until_ready(service)
            run = service.call("POST", "/runs", json=RUN)["id"]
            while service.call("GET", f"/runs/{run}")["state"] in ("starting", "running"):
                time.sleep(1)
    with closing(open_services(read_settings(data_dir=data_dir))) as services:
        copy_rows(services, t.runs, {"run_id": t.nodes}, runs)


def pages_of(service: Service) -> list[str]:
    """The address of each page below /ui, with ids that the store has."""

    def first(path: str, key: str, field: str = "id") -> str:
        return str(service.call("GET", path)[key][0][field])

    document = first("/documents", "documents")
    passage = first(f"/documents/{document}/passages", "passages")
    run = first("/runs", "runs")
    fact = first("/hardware/h100/facts", "facts")
    symbol = first("/hardware/h100/symbols?limit=1", "symbols")
    tabs = ("facts", "documents", "coverage", "symbols", "samples", "setup", "first-prompt")
    return [
        *("", "/retrieve", "/retrieve?signal=memory_bound&hardware=h100", "/upload", "/hardware"),
        *(
            "/hardware/h100",
            *(f"/hardware/h100/{tab}" for tab in tabs),
            "/hardware/h100/acceptance",
        ),
        *("/documents", "/documents?number=40", f"/documents/{document}", f"/passages/{passage}"),
        *("/skills", "/skills?q=softmax", f"/skills/{first('/skills', 'skills', 'name')}"),
        *("/runs", "/runs/new", f"/runs/{run}", f"/runs/{run}/candidates/1", "/jobs", "/recipes"),
        *("/knowledge", f"/facts/{fact}", f"/symbols/{symbol}", "/search?q=shared+memory"),
    ]


class PageTime(NamedTuple):
    """What a page took, in milliseconds, and the bytes of its HTML."""

    path: str
    first: float
    median: float
    processor: float
    size: int


def measure(service: Service, url: str, repeats: int) -> list[PageTime]:
    """Get every page, and the processor time of the service from /proc."""

    def processor() -> float:
        fields = Path(f"/proc/{service.pid}/stat").read_text().rpartition(")")[2].split()
        return 1_000 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    rows = []
    with httpx.Client(base_url=url, timeout=60) as client:
        for path in pages_of(service):
            times, size, used = [], 0, 0.0
            for number in range(repeats + 1):
                used = used if number > 1 else processor()
                began = time.perf_counter()
                answer = client.get(f"/ui{path}")
                times.append(1_000 * (time.perf_counter() - began))
                size = len(answer.raise_for_status().content)
            each = (processor() - used) / repeats
            rows.append(PageTime(path or "/", times[0], statistics.median(times[1:]), each, size))
            say(f"{path or '/'}: {rows[-1].median:.0f} ms, {size:,} bytes")
    return rows


def shared_bytes(url: str) -> int:
    """Bytes of the stylesheet and the scripts."""
    names = ("kernlore.css", "kernlore.js", "htmx.min.js")
    return sum(len(httpx.get(f"{url}/ui/static/{name}").content) for name in names)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--skills", type=int, default=5_000)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--results", type=Path)
    given = parser.parse_args(arguments)
    seed(given.data_dir, given.skills, given.runs)
    with service_at(None, given.data_dir) as service:
        wait_until_ready(service)
        url = service.http.url
        rows, shared = measure(service, url, given.repeats), shared_bytes(url)
    cells = [
        (r.path, *(f"{t:.0f}" for t in (r.first, r.median, r.processor, r.size / 1_000)))
        for r in rows
    ]
    slow = [row.path for row in rows if row.median > MOST_MS]
    heavy = [row.path for row in rows if row.size + shared > MOST_BYTES]
    parts = [
        table(("page", "first, ms", "median, ms", "processor, ms", "KB"), cells),
        f"Stylesheet and scripts: {shared / 1_000:.0f} KB, cached by the browser.",
        f"Over {MOST_MS:.0f} ms: {', '.join(slow) or 'none'}.",
        f"Over {MOST_BYTES / 1_000:.0f} KB: {', '.join(heavy) or 'none'}.",
        machine(),
    ]
    write_result(given.results, "Pages", parts)


if __name__ == "__main__":
    main()
