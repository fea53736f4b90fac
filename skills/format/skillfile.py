"""A skill's folder, `<name>/SKILL.md` and other files: read strictly, written in one canonical
form, packed as a zip, and exported.

The front matter is parsed with PyYAML but held to the format's reference validator:
plain text values, block style, no anchors, tags or repeated keys, no `---` inside. A written folder
that is read and written again is the same byte for byte. Archives are checked before anything is
written: names stay below the folder, and sizes are counted while unpacking.
"""

from __future__ import annotations

import io
import json
import stat
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from kb.catalog.skills.reading import SkillDraft
from kb.errors import InvalidKnowledge, KernloreError, NotFound, PayloadTooLarge
from kb.hardware.table_reader import Problems
from kb.ids import sha256
from kb.yaml_loaders import text_loader
from skills.format.schema import (
    EVIDENCE_JSON,
    FENCE,
    FIELDS,
    KEYS,
    STRUCTURED,
    SkillFile,
    advice,
    check,
    unmarked,
)

SKILL_MD = "SKILL.md"
MAX_FILES = 64
MAX_ENTRIES = MAX_FILES + 1  # with SKILL.md
MAX_FILE_BYTES = 256 * 1024
MAX_BYTES = 4 * 1024 * 1024  # of all files of a skill, unpacked
MAX_PATH = 200
STORED_AT = (1980, 1, 1, 0, 0, 0)  # the earliest time of a zip; equal skills give equal bytes
LARGE_HINT = "A skill is one page; put large material into a document."
# Keys about the state of a skill, which are no part of its advice.
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
    """The skill of a folder. Raises InvalidKnowledge with all problems, NotFound without a
    SKILL.md, and PayloadTooLarge."""
    skill, problems = parse_skill(folder)
    problems.raise_if_any()
    return skill


def parse_skill(folder: Path) -> tuple[SkillFile, Problems]:
    """As `read_skill`, but returns the problems instead of raising them, so that more can be
    added."""
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


def write_skill(skill: SkillFile, parent: Path) -> Path:
    """Write the skill without its scripts as `parent/<name>/`; returns that folder.

    Structured files of an earlier export that the skill no longer has are removed. Raises
    InvalidKnowledge for a skill that breaks the format.
    """
    problems = Problems(f"{skill.name}/{SKILL_MD}")
    check(skill, skill.name, problems)
    problems.raise_if_any()
    folder = parent / skill.name
    written = {SKILL_MD: render(skill).encode()}
    for name, data in skill.files.items():
        if PurePosixPath(name).parts[0] != "scripts":
            written[_safe(name)] = data
    for name in STRUCTURED - written.keys():
        (folder / name).unlink(missing_ok=True)
    for name, data in written.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    return folder


def content_sha256(skill: SkillFile) -> str:
    """A hash of the skill's advice, without its state and evidence."""
    lasting = {key: value for key, value in skill.metadata.items() if key not in VOLATILE}
    files = sorted((n, sha256(d)) for n, d in skill.files.items() if n != EVIDENCE_JSON)
    return sha256(render(replace(skill, metadata=lasting)) + json.dumps(files))


def with_content_hash(draft: SkillDraft) -> SkillDraft:
    return replace(draft, content_sha256=content_sha256(advice(draft)))


def skill_folders(folder: Path) -> list[Path]:
    """The folders right below `folder` that have a SKILL.md, by name."""
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
        raise PayloadTooLarge(f"{path.name} is over {MAX_FILE_BYTES} bytes", hint=LARGE_HINT)
    return path.read_bytes()


def _split(text: str, problems: Problems) -> tuple[str, str]:
    """Front matter and body. Readers of the format split at the first `---` in the file."""
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
        problems.add(str(key), "is not a field of the format", f"allowed: {', '.join(FIELDS)}")
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
    """Repeated keys of a mapping and of the mappings in it."""
    if not isinstance(node, yaml.MappingNode):
        return
    seen = set()
    for key, value in node.value:
        if key.value in seen:
            yield f"the key {key.value} twice", _line(key)
        seen.add(str(key.value))
        yield from _repeated(value)


def _line(item: yaml.Event | yaml.Node) -> int:
    mark = item.start_mark
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


# -- a folder of exported skills


@dataclass(frozen=True)
class Exported:
    """The written folders. Skills of an earlier export that are no longer active: `removed` folders
    by name with the state, and folders that are not removed (`kept`) because they were changed by
    hand."""

    folders: tuple[Path, ...]
    removed: Mapping[str, str]
    kept: Mapping[str, str]


def write_export(files: Sequence[SkillFile], parent: Path, states: Mapping[str, str]) -> Exported:
    """Write skills as folders below `parent`, and remove those of an earlier export that are no
    longer active. `states` has every skill that the caller may see.

    An export recognises its own folders by `kb.id` and the hash `kb.content-sha256` of their files;
    other folders are never touched.
    """
    written = tuple(write_skill(file, parent) for file in files)
    removed, kept = {}, {}
    for folder in skill_folders(parent):
        state = states.get(folder.name, "active")  # unknown: of another store
        if folder in written or state == "active":
            continue
        try:
            found = read_skill(folder)
        except KernloreError:  # not an exported skill
            continue
        if "kb.id" not in found.metadata or found.metadata.get("kb.status") == state:
            continue
        if content_sha256(unmarked(found)) == found.metadata.get("kb.content-sha256"):
            _remove(folder, found)
            removed[folder.name] = state
        else:
            kept[folder.name] = state
    return Exported(written, removed, kept)


def _remove(folder: Path, skill: SkillFile) -> None:
    for name in (SKILL_MD, *skill.files):
        (folder / name).unlink()
    below = sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True)
    for empty in (*below, folder):
        if not any(empty.iterdir()):
            empty.rmdir()


# -- zip files, and folders from names and texts


def packed(folder: Path) -> bytes:
    """The folder as a zip; equal files give equal bytes."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            name = path.relative_to(folder.parent).as_posix()
            entry = zipfile.ZipInfo(name, STORED_AT)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, path.read_bytes())
    return out.getvalue()


@contextmanager
def unpacked(data: bytes) -> Iterator[Path]:
    """The one skill folder of a zip, unpacked while the context lasts. Raises InvalidKnowledge,
    PayloadTooLarge or NotFound."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            files = _archived_files(archive)
    # zipfile raises NotImplementedError for a compression or version that it does not know.
    except (zipfile.BadZipFile, EOFError, NotImplementedError, ValueError, OSError) as error:
        raise InvalidKnowledge(
            f"not a readable zip file: {str(error)[:200]}",
            hint="Send what `kernlore skills export` or GET /skills/{name}/export gives, zipped.",
        ) from error
    with _folder(files) as folder:
        yield folder


@contextmanager
def placed(name: str, files: Mapping[str, str]) -> Iterator[Path]:
    """A folder from names and texts while the context lasts. Raises InvalidKnowledge,
    PayloadTooLarge or NotFound."""
    if len(files) > MAX_ENTRIES:
        raise _too_many(len(files))
    with _folder({f"{name}/{path}": text.encode() for path, text in files.items()}) as folder:
        yield folder


@contextmanager
def _folder(files: Mapping[str, bytes]) -> Iterator[Path]:
    for name in files:
        _check_name(name)
    tops = sorted({PurePosixPath(name).parts[0] for name in files})
    if len(tops) != 1 or f"{tops[0]}/{SKILL_MD}" not in files:
        raise NotFound(
            f"the archive is not one folder with a {SKILL_MD}",
            hint=f"Send one skill: NAME/{SKILL_MD} and its other files.",
        )
    for name, data in files.items():
        if len(data) > MAX_FILE_BYTES:
            raise PayloadTooLarge(f"{name[:80]} is over {MAX_FILE_BYTES:,} bytes", hint=LARGE_HINT)
    if sum(map(len, files.values())) > MAX_BYTES:
        raise PayloadTooLarge(f"its files are over {MAX_BYTES:,} bytes together", hint=LARGE_HINT)
    folders = {p.as_posix() for name in files for p in PurePosixPath(name).parents}
    for name in files:
        if name in folders:
            raise _refused(name, "is a file and a folder")
    if len({name.lower() for name in files}) != len(files):  # the same file on some disks
        raise _refused(sorted(files)[0], "and others differ in upper case alone")
    with tempfile.TemporaryDirectory(prefix="kernlore-skill-") as base:
        for name, data in files.items():
            target = Path(base) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        yield Path(base) / tops[0]


def _archived_files(archive: zipfile.ZipFile) -> dict[str, bytes]:
    entries = [entry for entry in archive.infolist() if not entry.is_dir()]
    if len(entries) > MAX_ENTRIES:
        raise _too_many(len(entries))
    files: dict[str, bytes] = {}
    left = MAX_BYTES
    for entry in entries:
        _check_entry(entry)
        if entry.filename in files:
            raise _refused(entry.filename, "is in the zip twice")
        limit = min(MAX_FILE_BYTES, left)
        with archive.open(entry) as stream:  # the stated size is not trusted
            data = stream.read(limit + 1)
        if len(data) > limit:
            raise PayloadTooLarge(
                f"{entry.filename[:80]} unpacks to more than {limit:,} bytes", hint=LARGE_HINT
            )
        left -= len(data)
        files[entry.filename] = data
    return files


def _check_entry(entry: zipfile.ZipInfo) -> None:
    _check_name(entry.filename)
    mode = entry.external_attr >> 16
    if stat.S_ISLNK(mode) or (stat.S_IFMT(mode) and not stat.S_ISREG(mode)):
        raise _refused(entry.filename, "is not a plain file")
    if entry.flag_bits & 0x1:
        raise _refused(entry.filename, "is encrypted")
    if entry.file_size > MAX_FILE_BYTES:
        name = entry.filename[:80]
        raise PayloadTooLarge(f"{name} is over {MAX_FILE_BYTES:,} bytes", hint=LARGE_HINT)


def _check_name(name: str) -> None:
    """Refuse names that leave the folder, or that have a meaning on another system."""
    path = PurePosixPath(name)
    odd = not name.isprintable() or "\\" in name or ":" in name or len(name) > MAX_PATH
    if odd or path.is_absolute() or ".." in path.parts or path.as_posix() != name:
        raise _refused(name, "is not a plain relative path")


def _refused(name: str, why: str) -> InvalidKnowledge:
    return InvalidKnowledge(
        f"{name[:80]!r} {why}", hint="Pack the skill's folder with plain files in it."
    )


def _too_many(count: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"it has {count} files", hint=f"A skill has at most {MAX_FILES} and its {SKILL_MD}."
    )
