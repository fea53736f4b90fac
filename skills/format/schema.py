"""The rules of a SKILL.md: those of the open format, and the meaning of the `kb.*` metadata.

The open format has six fields, all text; everything else that Kernlore knows is text under
`metadata` (`kb.signals: "memory_bound,latency_bound"`). All problems of a file are reported at
once. Only the form of ids is checked, not whether they exist.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from typing import Any
from unicodedata import category

from kb.catalog.skills.evidence import evidence_line
from kb.catalog.skills.reading import (
    AVOIDING,
    STATES,
    TIERS,
    EvidenceRow,
    SkillDraft,
    SkillRow,
    SkillScopes,
    as_warning,
)
from kb.errors import InvalidPredicate, nearest
from kb.hardware.table_reader import Problems
from kb.predicates import compile_predicate
from kb.problem_terms import canonical_dtype, canonical_op

FIELDS = ("name", "description", "license", "compatibility", "allowed-tools", "metadata")
MAX_NAME = 64
MAX_DESCRIPTION = 1024
MAX_COMPATIBILITY = 500
MAX_BODY_LINES = 500
MAX_BODY_CHARS = 20_000  # about 5,000 tokens
FENCE = "---"

# Scope lists, in the order in which they are written.
LISTS: Mapping[str, str] = {
    "kb.signals": "signals",
    "kb.hardware": "hardware",
    "kb.languages": "languages",
    "kb.ops": "ops",
    "kb.dtypes": "dtypes",
}
KEYS = (
    "kb.id",
    "kb.version",
    "kb.tier",
    "kb.status",
    "kb.polarity",
    "kb.kind",
    "kb.transformation",
    *LISTS,
    "kb.predicate",
    "kb.error",
    "kb.evidence",
    "kb.verified-at",
    "kb.toolchain",
    "kb.content-sha256",
)
# Kinds of skills other than transformations: an error with its cause and cure, or a kernel as text.
# `kb.error` holds the fixed words of the error.
DEBUGGING, TEXT = "debugging", "text"
EVIDENCE_JSON = "references/evidence.json"
MOVES_JSON = "references/moves.json"
RECIPE_JSON = "references/recipe.json"
STRUCTURED = frozenset({EVIDENCE_JSON, MOVES_JSON, RECIPE_JSON})

_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_SOURCES = re.compile(r"^## Sources\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^\]]+)\]\((\S+?)\)")
_ITEM = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
_CHOICES = {
    "kb.tier": TIERS,
    "kb.status": STATES,
    "kb.polarity": ("use", "avoid"),
    "kb.kind": (DEBUGGING, TEXT),
}


@dataclass(frozen=True)
class SkillFile:
    """One skill as its folder states it. `files` are the other files by relative path."""

    name: str
    description: str
    body: str
    license: str | None = None
    compatibility: str | None = None
    allowed_tools: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def scopes(self) -> SkillScopes:
        """The scopes in canonical terms."""
        lists = {name: split_list(self.metadata.get(key, "")) for key, name in LISTS.items()}
        lists["dtypes"] = tuple(dict.fromkeys(canonical_dtype(d) for d in lists["dtypes"]))
        lists["ops"] = tuple(dict.fromkeys(canonical_op(op) for op in lists["ops"]))
        lists["hardware"] = tuple(h for h in lists["hardware"] if h != "any")
        return SkillScopes(**{name: tuple(sorted(values)) for name, values in lists.items()})

    @property
    def transformation(self) -> str:
        """The transformation as a slug; by default the name."""
        return self.metadata.get("kb.transformation") or self.name

    @property
    def predicate(self) -> str | None:
        return self.metadata.get("kb.predicate") or None

    @property
    def about_error(self) -> dict[str, str]:
        """The stated ones of `kind` and `error`, as the catalog stores them."""
        values = {name: self.metadata.get(f"kb.{name}", "") for name in ("kind", "error")}
        return {name: value for name, value in values.items() if value}


def split_list(value: str) -> tuple[str, ...]:
    """ "a, b" as ("a", "b")."""
    return tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))


def check(skill: SkillFile, folder: str, problems: Problems) -> None:
    """Add all problems of a skill in a folder of this name."""
    _check_name(skill.name, folder, problems)
    texts = (
        ("description", skill.description, MAX_DESCRIPTION),
        ("license", skill.license, MAX_COMPATIBILITY),
        ("compatibility", skill.compatibility, MAX_COMPATIBILITY),
        ("allowed-tools", skill.allowed_tools, MAX_DESCRIPTION),
    )
    for key, value, limit in texts:
        if value is not None:
            _check_text(key, value, limit, problems)
    _check_body(skill.body, problems)
    for key, value in skill.metadata.items():
        _check_metadata(key, value, problems)


def _check_name(name: str, folder: str, problems: Problems) -> None:
    rule = f"1-{MAX_NAME} lower-case letters, digits and single hyphens between them"
    if not _NAME.fullmatch(name) or len(name) > MAX_NAME:
        problems.add("name", f"{name!r} is not a skill name", rule)
    elif name != folder:
        problems.add("name", f"{name!r} is in the folder {folder!r}", "give both the same name")


def _check_text(key: str, value: str, limit: int, problems: Problems) -> None:
    if not value.strip():
        fix = "every skill has one" if key == "description" else "write it or leave the field out"
        problems.add(key, "is missing or empty", fix)
    elif len(value) > limit:
        problems.add(key, f"has {len(value)} characters", f"at most {limit}")
    elif FENCE in value:
        problems.add(key, f"contains {FENCE}", "readers split the file there; use a dash")
    elif not all(c.isprintable() or c in "\n\t" or category(c) == "Zs" for c in value):
        problems.add(key, "has a control character", "remove it")


def _check_body(body: str, problems: Problems) -> None:
    lines = body.count("\n") + 1
    fix = "move details to references/"
    if not body.strip():
        problems.add("body", "is empty", "say when to use the skill and its steps")
    elif lines > MAX_BODY_LINES:
        problems.add("body", f"has {lines} lines", f"at most {MAX_BODY_LINES}; {fix}")
    elif len(body) > MAX_BODY_CHARS:
        problems.add("body", f"has {len(body)} characters", f"at most {MAX_BODY_CHARS}; {fix}")


def _check_metadata(key: str, value: str, problems: Problems) -> None:
    where = f"metadata.{key}"
    if FENCE in key or not key.isprintable() or not key.strip():
        problems.add(where, "is not a usable key", "letters, digits, dots and single hyphens")
    _check_text(where, value, MAX_BODY_CHARS, problems)
    if not key.startswith("kb."):
        return
    if key not in KEYS:
        near = nearest(key, KEYS, count=1)
        known = f"did you mean {near[0]}? " if near else ""
        problems.add(where, "is not a key of Kernlore", f"{known}known: {', '.join(KEYS)}")
    elif key in _CHOICES and value not in _CHOICES[key]:
        problems.add(where, f"is {value!r}", f"one of {', '.join(_CHOICES[key])}")
    elif key in LISTS:
        for item in split_list(value):
            if not _ITEM.fullmatch(item):
                problems.add(where, f"{item!r} is not an id", 'ids with commas between: "a,b"')
    elif key == "kb.version" and not (
        value.isascii() and value.isdigit() and 0 < int(value) < 10**9
    ):
        problems.add(where, f"is {value!r}", "a whole number from 1")
    elif key == "kb.predicate":
        _check_predicate(where, value, problems)


def _check_predicate(where: str, value: str, problems: Problems) -> None:
    try:
        compile_predicate(value)
    except InvalidPredicate as error:
        problems.add(where, error.message, error.hint)


# -- between a row of the catalog and a file


def skill_file(row: SkillRow, evidence: Sequence[EvidenceRow]) -> SkillFile:
    file = advice(row)
    metadata = {
        **file.metadata,
        "kb.id": row.id,
        "kb.version": str(row.version),
        "kb.tier": row.tier,
        "kb.status": row.state,
        "kb.evidence": evidence_line(evidence),
        "kb.content-sha256": row.content_sha256,
    }
    files = dict(file.files)
    if evidence:
        metadata["kb.verified-at"] = max(measured.created_at for measured in evidence)
        files[EVIDENCE_JSON] = _json([asdict(measured) for measured in evidence])
    if row.toolchain_id:
        metadata["kb.toolchain"] = row.toolchain_id
    return replace(file, metadata=metadata, files=files)


def advice(skill: SkillDraft | SkillRow) -> SkillFile:
    """The advice of a skill as a file, without its state and without the marks of a warning."""
    lists = {key: ",".join(sorted(getattr(skill.scopes, name))) for key, name in LISTS.items()}
    kb = {
        "kb.polarity": skill.polarity,
        "kb.kind": skill.metadata.get("kind", ""),
        "kb.transformation": skill.transformation,
        **lists,
        "kb.predicate": skill.predicate or "",
        "kb.error": skill.metadata.get("error", ""),
    }
    files = {name: text.encode() for name, text in skill.metadata.get("files", {}).items()}
    if skill.moves:
        files[MOVES_JSON] = _json([dict(move) for move in skill.moves])
    if skill.recipe is not None:
        files[RECIPE_JSON] = _json(dict(skill.recipe))
    return SkillFile(
        name=skill.name,
        description=skill.description,
        body=skill.body,
        license=skill.license,
        compatibility=skill.compatibility,
        allowed_tools=skill.metadata.get("allowed_tools"),
        metadata={**skill.metadata.get("other", {}), **{k: v for k, v in kb.items() if v}},
        files=files,
    )


def numbered_name(name: str, mark: str, first: int, taken: Iterable[str]) -> str:
    """The name with `mark` and the first free number from `first`, cut to the limit of names."""
    known = set(taken)
    suffixes = (f"{mark}{number}" for number in count(first))
    names = (name[: MAX_NAME - len(suffix)].rstrip("-") + suffix for suffix in suffixes)
    return next(numbered for numbered in names if numbered not in known)


def sources_of(body: str) -> list[dict[str, str]]:
    """The entries of `## Sources`: title, address where linked, and the rest of the line."""
    section = _SOURCES.search(body + "\n")
    lines = section.group(1).splitlines() if section else []
    sources = []
    for line in lines:
        if not line.startswith("- "):
            continue
        entry = line[2:].strip()
        link = _LINK.match(entry)
        if link:
            note = entry[link.end() :].lstrip(" ,")
            sources.append({"title": link.group(1), "url": link.group(2), "note": note})
        else:
            sources.append({"title": entry, "url": "", "note": ""})
    return sources


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


# -- the marks of a warning
#
# A reader of the open format ignores `kb.polarity`, so the description and the first line of the
# body of an exported warning begin with "Avoid". An import removes these marks again, so that both
# stores hold the same skill.


def marked(skill: SkillFile) -> SkillFile:
    """A warning with its marks; any other skill unchanged. A mark that would exceed a limit of the
    format is left out."""
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
    """A warning without the marks of `marked`."""
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
