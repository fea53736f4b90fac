"""Facts under keys of their author's own, from CSV, JSON and tables."""

from __future__ import annotations

import json

import pytest

from ingestion.findings.facts import propose_facts
from ingestion.formats import parse

LIMITS = [
    {"key": "transfers_in_flight", "value": 3, "unit": "count", "remark": "per core"},
    {"key": "roost_bandwidth", "value": 900, "unit": "GB/s", "remark": ""},
    {"key": "ring_hop", "value": 1.5, "unit": "cycles", "remark": ""},
    {"key": "roost_size", "value": 2, "unit": "MiB", "remark": ""},
]
READ = {
    "transfers_in_flight": (3, "count"),
    "x_roost_bandwidth": (900e9, "B/s"),  # as a hardware.toml wants it: near to `host_bandwidth`
    "ring_hop": (1.5, "cycles"),
    "roost_size": (2 << 20, "B"),
}
CSV = "key,value,unit,remark\n" + "".join(
    ",".join(str(cell) for cell in row.values()) + "\n" for row in LIMITS
)
TABLE = "# Limits\n\n| Name | Value | Unit |\n|---|---|---|\n" + "".join(
    f"| {str(row['key']).replace('_', ' ').capitalize()} | {row['value']} | {row['unit']} |\n"
    for row in LIMITS
)
BY_KEY = {str(row["key"]): {"value": row["value"], "unit": row["unit"]} for row in LIMITS}


def facts(text: str, name: str) -> dict[str, tuple[float | int | str, str]]:
    proposed = propose_facts(parse(text.encode(), name).elements)
    return {fact.key: (fact.value, fact.unit) for fact in proposed}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (CSV, "limits.csv"),
        (json.dumps(LIMITS), "limits.json"),
        (json.dumps({"limits": LIMITS}), "limits.json"),
        (json.dumps(BY_KEY), "limits.json"),
        (TABLE, "guide.md"),
    ],
)
def test_free_keys_are_proposed_from_every_form(text: str, name: str) -> None:
    assert facts(text, name) == READ


def test_a_known_key_is_in_its_one_unit() -> None:
    text = "key,value,unit\nl2_size,4,MB\nclock,oops,Hz\nl2_sizee,4,MB\n"
    read = facts(text, "limits.csv")
    assert read["l2_size"] == (4 << 20, "B")
    assert set(read) == {"l2_size", "x_l2_sizee"}


def test_a_key_with_two_values_and_a_table_of_two_chips_give_none() -> None:
    assert facts("key,value,unit\nhops,3,count\nhops,4,count\n", "a.csv") == {}
    assert facts("key,value,value,unit\nhops,3,4,count\n", "a.csv") == {}


def test_other_json_stays_text() -> None:
    document = parse(b'{"a": {"b": [1, 2]}}', "a.json")
    assert [element.kind for element in document.elements] == ["text"]
