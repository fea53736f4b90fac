"""Skills as commands print them."""

from __future__ import annotations

from typing import Any

from api.cli.output import Json, note, pairs, shortened, table


def warn(answer: Json) -> None:
    """Say what is odd about the scopes of a skill, and what it revises; an older service says
    nothing of it.
    """
    if answer.get("revises"):
        note(
            f"{answer['name']} revises {answer['revises']}, which stays in use as it is until"
            f" `kernlore skills verify {answer['name']}` or `kernlore skills approve"
            f" {answer['name']} --reason TEXT` puts it in that one's place"
        )
    for warning in answer.get("warnings", ()):
        note(f"Warning: {answer['name']}: {warning}")


def listed(rows: Any) -> str:
    """A table of skills."""
    return table(
        ("name", "tier", "state", "evidence", "description"),
        [
            (
                row["name"],
                row["tier"],
                row["state"],
                row["evidence"],
                shortened(row["description"], 90),
            )
            for row in rows
        ],
    )


def skill_text(skill: Json) -> str:
    """A skill with its text; of a revision, how it changes that."""
    conflicts = [f"{c['name']} ({c['state']}, {c['polarity']})" for c in skill.get("conflicts", ())]
    head = {
        **skill["summary"],
        "origin": skill["origin"],
        "transformation": skill.get("transformation"),
        "predicate": skill["predicate"],
        "conflicts with": ", ".join(conflicts),
        "revises": skill.get("revises"),
        "revision": skill.get("revision"),
    }
    changes = f"\n\n{skill['changes']}" if skill.get("changes") else ""
    return f"{pairs(head)}\n\n{skill['body']}".rstrip() + changes.rstrip()


def changed_text(answer: Json) -> str:
    """The state of a skill after a decision."""
    details = answer["event"]["details"]
    if "revision" in details:
        place = f"version {details['version']} of {details['skill']}"
        return f"{answer['name']} is in use now, as {place}"
    return f"{answer['name']} is {answer['state']}"
