"""Files of one upload that include each other: AsciiDoc (`include::`) and LaTeX (`\\input`).

The text of an included file is put in the place of its directive, as latexpand and
asciidoctor-reducer do, so that a manual in parts has one section tree and no part is a second
document. A directive whose file is not in the upload stays, and the reader of the format names it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from ingestion.formats.detect import Format, decode, extension_format
from kb.errors import KernloreError, PayloadTooLarge
from kb.settings import MIB

MAX_BYTES = 64 * MIB  # of a joined file
MAX_DEPTH = 40  # of files in files
_JOINED = (Format.ASCIIDOC, Format.LATEX)

_INCLUDE = re.compile(r"^include::([^\[\n]+)\[([^\]\n]*)\][ \t]*$")
_ENTRY = re.compile(r"^:([\w-]+):[ \t]+(\S.*)$")
_REFERENCE = re.compile(r"\{([\w-]+)\}")
_TAG = re.compile(r"\b(tag|end)::([\w.-]+)\[\]")
_INPUT = re.compile(
    r"\\(?P<command>input|include|subfile|(?:sub)?import\*?|lstinputlisting|verbatiminput"
    r"|usepackage)\b\s*+(?P<options>\[[^\]\n]*\])?\s*+\{(?P<first>[^{}\n#\\]*)\}"
    r"(?:(?<=\})\s*\{(?P<second>[^{}\n#\\]*)\})?"
)
_DEFINITION = re.compile(
    r"\\(?:(?:re|provide)?newcommand|providecommand|renewcommand|DeclareMathOperator|def"
    r"|newenvironment)\b\*?(?:[^{}%\n]|\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}){1,400}"
)


@dataclass
class JoinedUpload:
    """The files of an upload with the text of those that they include. `texts` are the files that
    include others, `part_of` the files that are included whole, with the file that has their text,
    `errors` files that cannot be joined."""

    texts: dict[str, bytes] = field(default_factory=dict)
    part_of: dict[str, str] = field(default_factory=dict)
    errors: dict[str, KernloreError] = field(default_factory=dict)

    def update(self, other: JoinedUpload) -> None:
        """Add the files of another archive of the upload."""
        self.texts |= other.texts
        self.part_of |= other.part_of
        self.errors |= other.errors


def join_includes(
    names: Collection[str], read: Callable[[str], bytes], most_bytes: int = MAX_BYTES
) -> JoinedUpload:
    """Join the files of an upload. `read` returns the bytes of one of them; a joined file may have
    `most_bytes`."""
    upload = JoinedUpload()
    joinable = [name for name in names if extension_format(name) in _JOINED]
    if not joinable or len(names) < 2:
        return upload
    direct = {name: set(_Joiner(names, read, most_bytes).direct(name)) for name in joinable}
    inner = set().union(*direct.values())
    # A file that is included within a circle only is read like one that no file includes.
    for name in sorted(joinable, key=lambda name: name in inner):
        if name in inner and name in upload.part_of:
            continue
        joiner = _Joiner(names, read, most_bytes)
        try:
            text = joiner.joined(name)
        except KernloreError as error:
            upload.errors[name] = error
            continue
        if joiner.parts:
            upload.texts[name] = text.encode()
            for part in joiner.parts - {name}:
                upload.part_of.setdefault(part, name)
                upload.texts.pop(part, None)
    return upload


class _Joiner:
    """Joins one file."""

    def __init__(self, names: Collection[str], read: Callable[[str], bytes], most: int) -> None:
        self.parts: set[str] = set()
        self._names = {posixpath.normpath(name): name for name in names}
        self._read = read
        self._most = most
        self._left = most
        self._attributes: dict[str, str] = {}
        self._offset = 0
        self._root = ""

    def direct(self, name: str) -> Iterator[str]:
        """The files that a file includes itself, without those whose names need an attribute."""
        self._root = name
        text = self._text(name)
        if extension_format(name) is Format.LATEX:
            found = (self._input(match, name) for match in _INPUT.finditer(text))
            yield from (target for target in found if target)
            return
        for line in text.split("\n"):
            self._note(line)
            if (match := _INCLUDE.match(line)) and (target := self._target(match[1], name)):
                yield target

    def joined(self, name: str) -> str:
        """The text of a file with those that it includes. Raises PayloadTooLarge."""
        self._root = name
        return self._joined(name, (name,))

    def _joined(self, name: str, around: tuple[str, ...]) -> str:
        text = self._text(name)
        self._left -= len(text)
        if self._left < 0:
            raise PayloadTooLarge(
                f"{self._root} has more than {self._most:,} bytes with the files that it includes",
                hint="Upload its parts alone, or raise KERNLORE_MAX_FILE_BYTES.",
            )
        if len(around) > MAX_DEPTH:
            return text
        if extension_format(name) is Format.LATEX:
            return _INPUT.sub(lambda match: self._latex(match, name, around), text)
        if extension_format(name) is not Format.ASCIIDOC:
            return text
        return "\n".join(self._asciidoc(line, name, around) for line in text.split("\n"))

    def _text(self, name: str) -> str:
        return decode(self._read(name)).text

    def _place(self, target: str, name: str) -> str | None:
        """The file of the upload with a path: relative to the file, the first one or the top."""
        for base in (name, self._root, ""):
            folder = posixpath.dirname(base)
            if (path := posixpath.normpath(posixpath.join(folder, target))) in self._names:
                return self._names[path]
        return None

    # -- AsciiDoc

    def _note(self, line: str) -> None:
        if entry := _ENTRY.match(line):
            self._attributes[entry[1].lower()] = self._expanded(entry[2])

    def _expanded(self, text: str) -> str:
        return _REFERENCE.sub(lambda m: self._attributes.get(m[1].lower(), m[0]), text)[:1_000]

    def _target(self, stated: str, name: str) -> str | None:
        return self._place(self._expanded(stated.strip()), name)

    def _asciidoc(self, line: str, name: str, around: tuple[str, ...]) -> str:
        self._note(line)
        match = _INCLUDE.match(line)
        target = self._target(match[1], name) if match else None
        if match is None or target is None or target in around:
            return line
        options = dict(re.findall(r"([\w-]+)=\"?([^,\"\]]*)", match[2]))
        if not options.keys() & {"lines", "tag", "tags"}:
            self.parts.add(target)
        before = self._offset
        if re.fullmatch(r"[+-]?\d", options.get("leveloffset", "")):
            self._offset = int(options["leveloffset"])
            self._offset += before if options["leveloffset"][0] in "+-" else 0
        text = self._joined(target, (*around, target))
        text = "\n".join(_selected(text.split("\n"), options))
        if self._offset != before:
            text = f":leveloffset: {self._offset}\n\n{text}\n\n:leveloffset: {before}"
            self._offset = before
        return text

    # -- LaTeX

    def _input(self, match: re.Match[str], name: str) -> str | None:
        """The file of a command, None for one in a comment or not in the upload."""
        line = match.string[match.string.rfind("\n", 0, match.start()) + 1 : match.start()]
        if re.search(r"(?<!\\)%", line):
            return None
        first, second = match["first"].strip(), (match["second"] or "").strip()
        stated = posixpath.join(first, second) if "import" in match["command"] else first
        suffix = ".sty" if match["command"] == "usepackage" else ".tex"
        named = self._place(stated + suffix, name) if stated else None
        if named is None and suffix == ".tex" and PurePosixPath(stated).suffix:
            named = self._place(stated, name)
        return named

    def _latex(self, match: re.Match[str], name: str, around: tuple[str, ...]) -> str:
        target = self._input(match, name)
        if target is None or target in around:
            return match[0]
        self.parts.add(target)
        text = self._joined(target, (*around, target))
        command, rest = match["command"], ""
        if "import" not in command and match["second"] is not None:
            rest = match[0][match.start("second") - match.start() - 1 :]
        if command == "usepackage":
            return "\n".join(definition[0] for definition in _DEFINITION.finditer(text)) + rest
        if command in ("lstinputlisting", "verbatiminput"):
            kind = "lstlisting" if command == "lstinputlisting" else "verbatim"
            options = match["options"] or ""
            return f"\\begin{{{kind}}}{options}\n{text}\n\\end{{{kind}}}{rest}"
        if "\\begin{document}" in text:  # a subfile, which is complete
            text = text.partition("\\begin{document}")[2].partition("\\end{document}")[0]
        return text + rest


def _selected(lines: list[str], options: dict[str, str]) -> Iterator[str]:
    """The lines of an included file that `lines` or `tags` select; lines with tags are dropped."""
    ranges = [part.partition("..") for part in re.split(r"[;,]", options.get("lines", "")) if part]
    wanted = {tag for tag in re.split(r"[;,]", options.get("tags", options.get("tag", ""))) if tag}
    inside: set[str] = set()
    for number, line in enumerate(lines, 1):
        if tag := _TAG.search(line):
            (inside.add if tag[1] == "tag" else inside.discard)(tag[2])
        elif wanted and not wanted & {"*", "**"} and not wanted & inside:
            continue
        elif not ranges or any(_covers(first, dots, last, number) for first, dots, last in ranges):
            yield line


def _covers(first: str, dots: str, last: str, number: int) -> bool:
    start = int(first) if first.strip().isdigit() else 1
    end = int(last) if last.strip().isdigit() else (10**9 if dots else start)
    return start <= number <= end
