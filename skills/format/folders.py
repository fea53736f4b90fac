"""A skill's folder as it travels: in a zip file, or as names and texts. What comes in is checked
before a byte of it is written: its names stay below the folder, its sizes within the format's
limits, whatever the archive claims of them.
"""

from __future__ import annotations

import io
import stat
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from kb.errors import InvalidKnowledge, NotFound, PayloadTooLarge
from skills.format.skillfile import MAX_FILE_BYTES, MAX_FILES, SKILL_MD

MAX_ENTRIES = MAX_FILES + 1  # and the page itself
MAX_BYTES = 4 * 1024 * 1024  # of all files of a skill, unpacked
MAX_PATH = 200
STORED_AT = (1980, 1, 1, 0, 0, 0)  # the first moment that a zip can say: equal skills, equal bytes


def packed(folder: Path) -> bytes:
    """The folder as a zip, the same bytes for the same files."""
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
    """The one skill folder of a zip, for as long as the context lasts. Raises InvalidKnowledge,
    PayloadTooLarge or NotFound."""
    with _folder(_files_of(data)) as folder:
        yield folder


@contextmanager
def placed(name: str, files: Mapping[str, str]) -> Iterator[Path]:
    """A folder from names and texts, for as long as the context lasts. Raises InvalidKnowledge,
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
            f"there is no one folder with a {SKILL_MD}",
            hint=f"Send one skill: NAME/{SKILL_MD} and the files beside it.",
        )
    for name, data in files.items():
        if len(data) > MAX_FILE_BYTES:
            raise _too_large(f"{name[:80]} is over {MAX_FILE_BYTES:,} bytes")
    if sum(map(len, files.values())) > MAX_BYTES:
        raise _too_large(f"its files are over {MAX_BYTES:,} bytes together")
    _check_folders(files)
    with tempfile.TemporaryDirectory(prefix="kernlore-skill-") as base:
        for name, data in files.items():
            target = Path(base) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        yield Path(base) / tops[0]


# -- zip files


def _files_of(data: bytes) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return _read(archive)
    # zipfile says NotImplementedError of a compression or version that it does not know.
    except (zipfile.BadZipFile, EOFError, NotImplementedError, ValueError, OSError) as error:
        raise InvalidKnowledge(
            f"that is no zip file that can be read: {str(error)[:200]}",
            hint="Send what `kernlore skills export` or GET /skills/{name}/export gives, zipped.",
        ) from error


def _read(archive: zipfile.ZipFile) -> dict[str, bytes]:
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
        with archive.open(entry) as stream:  # reads no more than the limit, whatever is claimed
            data = stream.read(limit + 1)
        if len(data) > limit:
            raise _too_large(f"{entry.filename[:80]} unpacks to more than {limit:,} bytes")
        left -= len(data)
        files[entry.filename] = data
    return files


def _check_entry(entry: zipfile.ZipInfo) -> None:
    _check_name(entry.filename)
    mode = entry.external_attr >> 16
    if stat.S_ISLNK(mode) or (stat.S_IFMT(mode) and not stat.S_ISREG(mode)):
        raise _refused(entry.filename, "is a link or something else than a file")
    if entry.flag_bits & 0x1:
        raise _refused(entry.filename, "is encrypted")
    if entry.file_size > MAX_FILE_BYTES:
        raise _too_large(f"{entry.filename[:80]} is over {MAX_FILE_BYTES:,} bytes")


def _check_name(name: str) -> None:
    """Plain relative names: what leaves the folder, or means something to a shell of another
    system, is refused."""
    path = PurePosixPath(name)
    odd = not name.isprintable() or "\\" in name or ":" in name or len(name) > MAX_PATH
    if odd or path.is_absolute() or ".." in path.parts or path.as_posix() != name:
        raise _refused(name, "is no plain relative path")


def _check_folders(files: Mapping[str, bytes]) -> None:
    """No file may stand where the folder of another has to be, and no two names may differ in
    upper case alone: some disks hold them to be the same."""
    folders = {p.as_posix() for name in files for p in PurePosixPath(name).parents}
    for name in files:
        if name in folders:
            raise _refused(name, "is a file and a folder")
    if len({name.lower() for name in files}) != len(files):
        raise _refused(sorted(files)[0], "and others differ in upper case alone")


def _refused(name: str, why: str) -> InvalidKnowledge:
    return InvalidKnowledge(
        f"{name[:80]!r} {why}", hint="Pack the skill's folder with plain files in it."
    )


def _too_many(count: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"it has {count} files", hint=f"A skill has at most {MAX_FILES} beside its {SKILL_MD}."
    )


def _too_large(what: str) -> PayloadTooLarge:
    return PayloadTooLarge(what, hint="A skill is one page; put large material into a document.")
