"""A hardware's coverage as text: what there is topic by topic, then what would help most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from api.cli.output import Json, table


def coverage_text(coverage: Json, *, signals: bool = False) -> str:
    """The topics that something is known of, and the most useful ones that are missing.

    signals: also every signal, covered or not.
    """
    states = Counter(subject["state"] for subject in coverage["signals"])
    lines = [
        f"coverage of {coverage['hardware']}: {coverage['documents']} documents,"
        f" {coverage['passages']} passages, {len(coverage['facts_known'])} facts;"
        f" signals: {states['covered']} covered, {states['thin']} thin, {states['missing']} missing"
    ]
    if signals:
        lines.append(_subjects("signal", coverage["signals"]))
    known = [topic for topic in coverage["topics"] if topic["state"] != "missing"]
    if known:
        lines.append(_subjects("topic", known))
    untold = len(coverage["topics"]) - len(known)
    if untold:
        lines.append(f"{untold} topics with nothing about it")
    if coverage["missing_topics"]:
        lines.append("most useful to add:")
        lines += [f"  {row['topic']}: {row['upload']}" for row in coverage["missing_topics"]]
    return "\n".join(lines)


def _subjects(name: str, subjects: Sequence[Json]) -> str:
    return table(
        (name, "state", "own", "inherited", "documents"),
        [(s["id"], s["state"], s["own"], s["inherited"], s["documents"]) for s in subjects],
    )
