"""The plug-in for coding agents: its manifests, and the tools and fields that its skill names."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

from api.mcp.results import Retrieved
from api.mcp.server import TAKEN
from api.mcp.tools import TOOLS

ROOT = Path(__file__).parents[3]
PLUGIN = ROOT / "clients" / "agent-plugin"
SKILL = PLUGIN / "skills" / "kernlore" / "SKILL.md"
# https://agent-plugins.org/schemas/1.0.0/plugin.schema.json allows these fields alone.
FIELDS = {
    *("$schema", "name", "version", "description", "author", "homepage", "repository", "license"),
    *("keywords", "extensions"),
}


def read(name: str) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads((PLUGIN / name).read_text(encoding="utf-8"))
    return parsed


def test_manifests_name_one_plugin_version_and_server() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    standard, claude = read("plugin.json"), read(".claude-plugin/plugin.json")
    assert set(standard) <= FIELDS
    assert {name: standard[name] for name in claude} == claude
    assert standard["version"] == project["version"]
    [listed] = read(".claude-plugin/marketplace.json")["plugins"]
    assert (listed["name"], listed["source"]) == (standard["name"], "./")
    assert read("mcp.json")["mcpServers"] == read(".mcp.json")["mcpServers"]


def test_skill_names_tools_and_fields_that_exist() -> None:
    head, text = SKILL.read_text(encoding="utf-8").removeprefix("---\n").split("\n---\n", 1)
    front = yaml.safe_load(head)
    assert front["name"] == SKILL.parent.name
    assert len(front["description"]) <= 1024  # of the Agent Skills specification
    names = set(re.findall(r"`([a-z_]+)(?:=[^`]*)?`", text))
    fields = {*TAKEN, *Retrieved.model_fields}
    commands = {"used", "fields"}
    assert names - set(TOOLS) - fields - commands == set()
    assert len(names & set(TOOLS)) >= 10
