"""Pictures of the web pages for `docs/images`, from a service that runs.

`python docs/screenshots.py http://127.0.0.1:8321 docs/images`, with the built-in knowledge read and
at least one finished run in its store. Needs a Chromium on this machine (`make browser`).
"""

from __future__ import annotations

import json
import shutil
import sys
import urllib.request
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
ON_A_PHONE = "chip"


def pages(base: str) -> dict[str, str]:
    """The address of each page by the name of its picture."""
    document = _first(base, "/documents?hardware=h100", "documents")["id"]
    passage = _first(base, f"/documents/{document}/passages", "passages")["id"]
    skill = _first(base, "/skills?hardware=h100", "skills")["name"]
    run = _first(base, "/runs", "runs", state="finished")["id"]
    ask = "/retrieve?signal=memory_bound&hardware=h100&op=softmax"
    named = {
        "home": "",
        "chips": "/hardware",
        "chip": "/hardware/h100",
        "setup": "/hardware/h100/setup",
        "symbols": "/hardware/h100/symbols",
        "samples": "/hardware/h100/samples",
        "first-prompt": "/hardware/h100/first-prompt",
        "documents": "/documents",
        "document": f"/documents/{document}",
        "passage": f"/passages/{passage}",
        "upload": "/upload",
        "jobs": "/jobs",
        "knowledge": "/knowledge?path=hardware/h100",
        "ask": ask,
        "skills": "/skills",
        "skill": f"/skills/{skill}",
        "recipes": "/recipes",
        "runs": "/runs",
        "run-new": "/runs/new",
        "run": f"/runs/{run}",
        "candidate": f"/runs/{run}/candidates/1",
    }
    return {name: f"{base}/ui{path}" for name, path in named.items()}


def _first(base: str, path: str, rows: str, **having: str) -> dict[str, Any]:
    with urllib.request.urlopen(base + path) as answer:
        listed = [r for r in json.load(answer)[rows] if having.items() <= r.items()]
    if not listed:
        raise SystemExit(f"error: {base}{path} lists nothing; fill the store first")
    first: dict[str, Any] = listed[0]
    return first


def take(base: str, folder: Path) -> None:
    """Write one picture of each page, and one on a phone's screen."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise SystemExit("error: no Chromium on this machine; `make browser` installs it")
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        for name, address in pages(base).items():
            for size, picture in ((DESKTOP, name), (PHONE, "phone")):
                if picture == "phone" and name != ON_A_PHONE:
                    continue
                theme = "dark" if picture == "phone" else "light"
                page = launched.new_page(viewport=size, color_scheme=theme)  # type: ignore[arg-type]
                page.goto(address, wait_until="networkidle")
                page.screenshot(path=folder / f"web-{picture}.png")
                page.close()
        launched.close()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("usage: python docs/screenshots.py ADDRESS FOLDER")
    take(sys.argv[1].rstrip("/"), Path(sys.argv[2]))
