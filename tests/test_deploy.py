"""Files of deploy/ name existing metrics, settings and folders."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest

from api.http.observability import Metrics
from api.services import Readiness
from kb.catalog.evaluations import Figures
from kb.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
NAME = re.compile(r"\bkernlore_[a-z_]+")
RULES = yaml.safe_load((DEPLOY / "prometheus" / "kernlore.rules.yml").read_text(encoding="utf-8"))
BOARD = json.loads((DEPLOY / "grafana" / "kernlore.json").read_text(encoding="utf-8"))
COMPOSE = yaml.safe_load((DEPLOY / "containers" / "compose.yml").read_text(encoding="utf-8"))
CONTAINERFILE = (DEPLOY / "containers" / "Containerfile").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def names() -> set[str]:
    """The names of all series of a service."""
    metrics = Metrics()
    figures = Figures(1.0, {"finished": 1}, {"finished": 1}, 0.5, {"yes": 1}, {"active": 1})
    ready = Readiness(True, True, 2, 2, "chroma", {"queued": 1})
    metrics.observe(lambda: ready, lambda: figures)
    metrics.request("/retrieve", "GET", 200, 0.1)
    metrics.stage("ranking", 0.1)
    metrics.upload("created")
    metrics.retrieval(_Answer())  # type: ignore[arg-type]
    text = generate_latest(metrics.registry).decode()
    return {line.partition("{")[0].partition(" ")[0] for line in text.splitlines()}


class _Answer:
    excerpts = ()

    class diagnosis:
        signals = ()


def rules() -> list[dict[str, Any]]:
    return [rule for group in RULES["groups"] for rule in group["rules"]]


def expressions() -> list[str]:
    of_board = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]
    return [rule["expr"] for rule in rules()] + of_board


def test_every_expression_uses_existing_series(names: set[str]) -> None:
    assert len(expressions()) > 15
    for expression in expressions():
        requested = set(NAME.findall(expression))
        assert requested and requested <= names, (expression, requested - names)
        assert expression.count("(") == expression.count(")"), expression


def test_every_series_has_panel_or_alert(names: set[str]) -> None:
    shown = {name for text in expressions() for name in NAME.findall(text)}
    own = {re.sub(r"_(bucket|sum|count|created|total)$", "", n) for n in names if NAME.match(n)}
    known = {re.sub(r"_(bucket|sum|count|created|total)$", "", n) for n in shown}
    assert own - known == {"kernlore_excerpts_returned"}


def test_documentation_lists_every_series_and_alert(names: set[str]) -> None:
    text = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    own = {name for name in names if NAME.match(name) and not name.endswith("_created")}
    own = {re.sub(r"_(bucket|sum|count)$", "", name) for name in own}
    assert set(NAME.findall(text)) == own
    assert {rule["alert"] for rule in rules()} == set(re.findall(r"^\| (Kernlore\w+) ", text, re.M))


def test_every_alert_has_instruction() -> None:
    for rule in rules():
        assert rule["annotations"].keys() == {"summary", "action"}, rule["alert"]
        assert rule["labels"]["severity"] in ("info", "warning", "critical")


def test_panels_do_not_overlap_and_have_titles() -> None:
    places = [tuple(panel["gridPos"].values()) for panel in BOARD["panels"]]
    assert len(set(places)) == len(places)
    assert all(panel["title"] and panel["targets"] for panel in BOARD["panels"])


def test_image_has_every_package_and_existing_settings() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = project["tool"]["setuptools"]["packages"]["find"]["include"]
    for package in packages:
        folder = package.rstrip("*")
        assert f"COPY {folder} {folder}\n" in CONTAINERFILE
    extras = re.search(r"'\.\[([a-z0-9,]+)\]'", CONTAINERFILE)
    assert (
        extras and set(extras[1].split(",")) <= project["project"]["optional-dependencies"].keys()
    )
    fields = {f"KERNLORE_{name.upper()}" for name in Settings.model_fields}
    used = set(COMPOSE["services"]["kernlore"]["environment"])
    used |= set(re.findall(r"^ENV (KERNLORE_\w+)=", CONTAINERFILE, re.M))
    assert used <= fields


def test_volumes_and_files_of_composition_are_declared() -> None:
    for service in COMPOSE["services"].values():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            if source.startswith("."):
                assert (DEPLOY / "containers" / source).exists(), source
            else:
                assert source in COMPOSE["volumes"], source
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), port
