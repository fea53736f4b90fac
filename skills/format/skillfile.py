"""A skill's folder on disk: `<name>/SKILL.md` and the files beside it, read strictly and written in
one canonical form.

The front matter is parsed with PyYAML but held to what the format's reference validator accepts:
plain text values, block style, no anchors, tags or repeated keys, no `---` inside. What
`write_skill` wrote, `read_skill` reads and `write_skill` writes again byte for byte. Knows nothing
about the catalog.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from kb.errors import InvalidKnowledge, NotFound, PayloadTooLarge
from kb.hardware.table_reader import Problems
from kb.ids import sha256
from kb.yaml_loaders import text_loader
from skills.format.schema import EVIDENCE_JSON, FENCE, FIELDS, KEYS, STRUCTURED, SkillFile, check

SKILL_MD = "SKILL.md"
MAX_FILES = 64
MAX_FILE_BYTES = 256 * 1024
# Of what these say only the state of a skill depends, never what it advises.
VOLATILE = frozenset(
    {
        "kb.id",
        "kb.version",
        "kb.tier",
        "kb.status",
        "kb.evidence",
        "kb.verified-at",
        "kb.toolchain",
        "kb.content-sha256",
    }
)


def read_skill(folder: Path) -> SkillFile:
    """The skill of a folder. Raises InvalidKnowledge, which lists everything that is wrong with it,
    NotFound without a SKILL.md, and PayloadTooLarge."""
    skill, problems = parse_skill(folder)
    problems.raise_if_any()
    return skill


def parse_skill(folder: Path) -> tuple[SkillFile, Problems]:
    """As `read_skill`, with what is wrong with it in place of an error, so that more can come."""
    folder = folder.resolve()
    text = _skill_md(folder)
    problems = Problems(f"{folder.name}/{SKILL_MD}")
    front, body = _split(text, problems)
    fields = _front_matter(front, problems)
    metadata = fields.get("metadata", {})
    if not isinstance(metadata, Mapping):
        problems.add("metadata", "is not a mapping", 'write lines like kb.signals: "memory_bound"')
        metadata = {}
    skill = SkillFile(
        name=_text(fields, "name", problems) or "",
        description=_text(fields, "description", problems) or "",
        body=body,
        license=_text(fields, "license", problems),
        compatibility=_text(fields, "compatibility", problems),
        allowed_tools=_text(fields, "allowed-tools", problems),
        metadata={key: value for key, value in metadata.items() if isinstance(value, str)},
        files=_other_files(folder),
    )
    for key in metadata.keys() - skill.metadata.keys():
        problems.add(f"metadata.{key}", "is not text", 'quote it: "a,b"')
    check(skill, folder.name, problems)
    return skill, problems


def render(skill: SkillFile) -> str:
    """The text of its SKILL.md: fields in a fixed order, every value quoted on one line."""
    lines = [FENCE, f"name: {skill.name}", f"description: {_quoted(skill.description)}"]
    for key, value in (
        ("license", skill.license),
        ("compatibility", skill.compatibility),
        ("allowed-tools", skill.allowed_tools),
    ):
        if value is not None:
            lines.append(f"{key}: {_quoted(value)}")
    if skill.metadata:
        lines.append("metadata:")
        lines += [f"  {_key(k)}: {_quoted(skill.metadata[k])}" for k in _ordered(skill.metadata)]
    return "\n".join([*lines, FENCE, "", skill.body.strip(), ""])


def write_skill(skill: SkillFile, parent: Path, *, scripts: bool = False) -> Path:
    """Write the skill as `parent/<name>/` and return that folder; `scripts/` only where `scripts`
    says so.

    Structured files of an earlier export that the skill no longer has are removed. Raises
    InvalidKnowledge for a skill that breaks the format.
    """
    problems = Problems(f"{skill.name}/{SKILL_MD}")
    check(skill, skill.name, problems)
    problems.raise_if_any()
    folder = parent / skill.name
    written = {SKILL_MD: render(skill).encode()}
    for name, data in skill.files.items():
        if scripts or not _is_script(name):
            written[_safe(name)] = data
    for name in STRUCTURED - written.keys():
        (folder / name).unlink(missing_ok=True)
    for name, data in written.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    return folder


def content_sha256(skill: SkillFile) -> str:
    """A hash of what the skill advises: without its state, its evidence and where it is stored."""
    lasting = {key: value for key, value in skill.metadata.items() if key not in VOLATILE}
    advice = SkillFile(
        skill.name,
        skill.description,
        skill.body,
        skill.license,
        skill.compatibility,
        skill.allowed_tools,
        lasting,
    )
    files = sorted((n, sha256(d)) for n, d in skill.files.items() if n != EVIDENCE_JSON)
    return sha256(render(advice) + json.dumps(files))


def skill_folders(folder: Path) -> list[Path]:
    """The folders below that hold a skill, by name."""
    return sorted(path.parent for path in folder.glob(f"*/{SKILL_MD}"))


# -- reading


def _skill_md(folder: Path) -> str:
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if SKILL_MD not in names:
        other = next((name for name in names if name.lower() == SKILL_MD.lower()), None)
        hint = (
            f"Rename {other} to {SKILL_MD}." if other else f"A skill is a folder with {SKILL_MD}."
        )
        raise NotFound(f"no {SKILL_MD} in {folder.name}", hint=hint)
    data = _bytes(folder / SKILL_MD)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidKnowledge(
            f"{folder.name}/{SKILL_MD} is not UTF-8: {error}", hint="Save it as UTF-8."
        ) from error
    return text.replace("\r\n", "\n")


def _bytes(path: Path) -> bytes:
    if path.stat().st_size > MAX_FILE_BYTES:
        raise PayloadTooLarge(
            f"{path.name} is over {MAX_FILE_BYTES} bytes",
            hint="A skill is one page; put large material into a document.",
        )
    return path.read_bytes()


def _split(text: str, problems: Problems) -> tuple[str, str]:
    """Front matter and body. Readers of the format split at the first `---`, wherever it stands."""
    if not text.startswith(f"{FENCE}\n"):
        problems.add("(file)", f"does not start with {FENCE}", "put the front matter at the top")
        return "", text.strip()
    front, fence, body = text[len(FENCE) + 1 :].partition(f"\n{FENCE}\n")
    if not fence:
        problems.add("(file)", "the front matter has no end", f"close it with a line {FENCE}")
    if FENCE in front:
        problems.add("(front matter)", f"contains {FENCE}", "readers split the file there")
    return front, body.strip()


def _front_matter(text: str, problems: Problems) -> Mapping[str, Any]:
    try:
        for event, line in _unplain(text):
            problems.add(f"line {line}", f"uses {event}", 'write block style, values like "a,b"')
        loaded = yaml.load(text, Loader=text_loader(text))  # every scalar stays text
    except yaml.YAMLError as error:
        problems.add("(front matter)", f"is not YAML: {error}", "quote values that contain `: `")
        return {}
    if not isinstance(loaded, dict):
        problems.add("(front matter)", "is not a mapping", "write `name: ...` and so on")
        return {}
    for key in loaded.keys() - set(FIELDS):
        problems.add(str(key), "is no field of the format", f"allowed: {', '.join(FIELDS)}")
    return loaded


def _unplain(text: str) -> Iterator[tuple[str, int]]:
    """YAML that the reference validator refuses, with its line."""
    for event in yaml.parse(text, Loader=text_loader(text)):
        line = _line(event)
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            yield "an anchor", line
        if getattr(event, "tag", None) is not None:
            yield "a tag", line
        if getattr(event, "flow_style", None):
            yield "flow style", line
    yield from _repeated(yaml.compose(text, Loader=text_loader(text)))


def _repeated(node: yaml.Node | None) -> Iterator[tuple[str, int]]:
    """Keys that a mapping has twice; one level of nesting is all the format has."""
    if not isinstance(node, yaml.MappingNode):
        return
    seen = set()
    for key, value in node.value:
        if key.value in seen:
            yield f"the key {key.value} twice", _line(key)
        seen.add(str(key.value))
        yield from _repeated(value)


def _line(place: yaml.Event | yaml.Node) -> int:
    mark = place.start_mark
    return mark.line + 2 if mark else 1  # counted from the opening fence


def _text(fields: Mapping[str, Any], key: str, problems: Problems) -> str | None:
    value = fields.get(key)
    if value is None:
        return None
    if not isinstance(value, str):
        problems.add(key, "is not text", "quote it")
        return None
    return value.strip()


def _other_files(folder: Path) -> dict[str, bytes]:
    paths = sorted(folder.rglob("*"))
    linked = next((path for path in paths if path.is_symlink()), None)
    if linked is not None:
        raise InvalidKnowledge(
            f"{linked.relative_to(folder)} is a link", hint="Put the file itself into the folder."
        )
    files = [path for path in paths if path.is_file() and path != folder / SKILL_MD]
    if len(files) > MAX_FILES:
        raise PayloadTooLarge(
            f"{folder.name} has {len(files)} files", hint=f"A skill has at most {MAX_FILES}."
        )
    return {path.relative_to(folder).as_posix(): _bytes(path) for path in files}


# -- writing


def _is_script(name: str) -> bool:
    return PurePosixPath(name).parts[0] == "scripts"


def _safe(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or name == SKILL_MD:
        raise InvalidKnowledge(f"{name!r} leaves the skill's folder", hint="Use a relative path.")
    return path.as_posix()


def _ordered(metadata: Mapping[str, str]) -> list[str]:
    known = [key for key in KEYS if key in metadata]
    return known + sorted(metadata.keys() - set(known))


def _key(key: str) -> str:
    plain = key.replace("-", "").replace("_", "").replace(".", "")
    return key if plain.isalnum() and plain.isascii() and plain[0].isalpha() else _quoted(key)


def _quoted(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
