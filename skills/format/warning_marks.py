"""What makes a warning plain to a reader of the open format, who passes over `kb.polarity`: its
description and the first line of its body begin with "Avoid". Marks are put on at an export and
taken off at an import, so that both ends hold the same skill.
"""

from __future__ import annotations

from dataclasses import replace

from kb.catalog.skills import AVOIDING, as_warning
from skills.format.schema import MAX_BODY_CHARS, MAX_BODY_LINES, MAX_DESCRIPTION, SkillFile


def marked(skill: SkillFile) -> SkillFile:
    """A warning with its marks, any other skill as it is. A mark that would make the file longer
    than the format allows is left out; the body's says all that the description's does."""
    if skill.metadata.get("kb.polarity") != "avoid":
        return skill
    description, line = as_warning(skill.description), _first_line(skill.description)
    body = skill.body if skill.body.startswith(line) else f"{line}\n\n{skill.body}"
    fits = body.count("\n") < MAX_BODY_LINES and len(body) <= MAX_BODY_CHARS
    return replace(
        skill,
        description=description if len(description) <= MAX_DESCRIPTION else skill.description,
        body=body if fits else skill.body,
    )


def unmarked(skill: SkillFile) -> SkillFile:
    """A warning without what `marked` adds."""
    if skill.metadata.get("kb.polarity") != "avoid":
        return skill
    line, _, rest = skill.body.partition("\n")
    marks = (_first_line(skill.description), _first_line(skill.description.removeprefix(AVOIDING)))
    return replace(
        skill,
        description=skill.description.removeprefix(AVOIDING).strip() or skill.description,
        body=rest.strip() if line.strip() in marks and rest.strip() else skill.body,
    )


def _first_line(description: str) -> str:
    return " ".join(as_warning(description).split())
