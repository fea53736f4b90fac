"""The format of a file, by its bytes before its name, and the text in its bytes.

Knows nothing about the readers. No library does this: puremagic 1.30 takes every zip for a DOCX and
every compound file for a .wb3, filetype 1.2 takes an Outlook message for an XLS.
"""

from __future__ import annotations

import io
import re
import zipfile
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath

from kb.errors import ParseFailed, UnsupportedFormat


class Format(StrEnum):
    """A reader of files. OTHER is everything that unstructured reads."""

    PDF = "pdf"
    MARKDOWN = "markdown"
    RST = "rst"
    ASCIIDOC = "asciidoc"
    LATEX = "latex"
    ROFF = "roff"
    HTML = "html"
    NOTEBOOK = "notebook"
    TEXT = "text"
    DOCX = "docx"
    CODE = "code"
    OTHER = "other"


@dataclass(frozen=True)
class Decoded:
    """The text of a file, and warnings about lost or guessed characters."""

    text: str
    warnings: tuple[str, ...] = ()


_BY_EXTENSION = {
    Format.PDF: ("pdf",),
    Format.MARKDOWN: ("md", "markdown", "mdown", "mkd", "mdx", "myst"),
    Format.RST: ("rst", "rest"),
    Format.ASCIIDOC: ("adoc", "asciidoc"),
    Format.LATEX: ("tex", "latex", "ltx"),
    Format.ROFF: ("roff", "man", "mdoc"),
    Format.HTML: ("html", "htm", "xhtml"),
    Format.NOTEBOOK: ("ipynb",),
    Format.TEXT: ("txt", "text", "log"),
    Format.DOCX: ("docx",),
    Format.OTHER: (
        *("pptx", "ppt", "xlsx", "xls", "doc", "odt", "epub", "rtf", "eml", "msg"),
        *("org", "csv", "tsv", "xml"),
    ),
}
# The languages of code files, as fences name them; each file is one block.
CODE_LANGUAGES = {
    **dict.fromkeys(("py", "pyi"), "python"),
    **dict.fromkeys(("c", "h"), "c"),
    **dict.fromkeys(("cc", "cpp", "cxx", "hpp", "hh", "hxx"), "cpp"),
    **dict.fromkeys(("cu", "cuh"), "cuda"),
    **dict.fromkeys(("s", "asm"), "asm"),
    "cl": "opencl",
    "hip": "hip",
    "ptx": "ptx",
    "ll": "llvm",
    "mlir": "mlir",
    "rs": "rust",
    "go": "go",
    "jl": "julia",
    "metal": "metal",
    "sh": "bash",
    "cmake": "cmake",
}
# Files that hold no text; a short one would look like text.
_BINARY_EXTENSIONS = frozenset(
    (
        *("bin", "dat", "exe", "dll", "so", "dylib", "o", "obj", "a", "lib", "elf", "img", "iso"),
        *("rom", "fw", "hex", "pyc", "class", "jar", "whl", "wasm", "npy", "npz", "pt", "pth"),
        *("onnx", "safetensors", "pkl", "pickle", "parquet", "h5", "db", "sqlite"),
        *("png", "jpg", "jpeg", "gif", "bmp", "webp", "ico", "tif", "tiff", "mp3", "mp4", "mov"),
        *("avi", "wav", "ttf", "otf", "woff", "woff2"),
        *("zip", "tar", "gz", "tgz", "bz2", "xz", "7z", "rar"),
    )
)
_EXTENSIONS = {ext: kind for kind, exts in _BY_EXTENSION.items() for ext in exts}

_FORMATS_HINT = (
    "Upload PDF, Markdown, reStructuredText, AsciiDoc, LaTeX, a manual page, HTML, a Jupyter"
    " notebook, plain text or DOCX; convert anything else first."
)
_NO_DOCUMENT = {
    rb"(?:\s*<[?!][^>]*>)*\s*<svg[\s>]": "an SVG image",
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"GIF8": "a GIF image",
    b"\x1f\x8b": "a gzip archive",
    b"7z\xbc\xaf": "a 7z archive",
    b"BZh": "a bzip2 archive",
    b"\xfd7zXZ": "an xz archive",
    b"Rar!": "a RAR archive",
    b"\x7fELF": "an ELF binary",
    b"SQLite format 3": "an SQLite database",
}
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
# In this order: an encrypted file and a mail with attachments hold streams of other formats too.
_OLE_STREAMS = {
    "EncryptedPackage": None,
    "__properties_version1.0": "msg",
    "WordDocument": "doc",
    "PowerPoint Document": "ppt",
    "Workbook": "xls",
    "Book": "xls",
}
_ZIP_MEMBERS = {"ppt/presentation.xml": "pptx", "xl/workbook.xml": "xlsx"}
_MIMETYPES = {b"application/epub+zip": "epub", b"application/vnd.oasis.opendocument.text": "odt"}
_LONGEST_MIMETYPE = 128
_SNIFF_BYTES = 65_536
_PDF_HEADER_WITHIN = 1024

# Measured on the manuals of the built-in set: text stays under 0.1 % control bytes, random bytes
# have 10 %.
_MAX_CONTROL_SHARE = 0.03
_MAX_NUL_SHARE = 0.25
_CONTROL = bytes(b for b in range(1, 32) if b not in b"\t\n\r\f\b\x1b") + b"\x7f"

_DATA_URI = re.compile(
    r"data:[\w.+-]+/[\w.+-]+(?:;[\w=-]+)*;base64,[A-Za-z0-9+/=%]*(?:\n[A-Za-z0-9+/=%]{40,})*"
)
_LONG_BASE64 = re.compile(r"[A-Za-z0-9+/]{400,}={0,2}")
_WRAPPED_BASE64 = re.compile(
    r"(?:^[ \t]*[A-Za-z0-9+/]{60,}={0,2}[ \t]*\n){4,}(?:^[ \t]*[A-Za-z0-9+/]+={0,2}[ \t]*$)?", re.M
)
_MIXED = re.compile(r"(?=.*[a-z])(?=.*[A-Z])(?=.*[0-9])", re.S)

# Searched by the service itself, on any bytes: no part may match one text in several ways.
_HTML_START = re.compile(
    rb"\s*+(?:<\?xml[^>]*>\s*+)?(?:<!--(?>.*?-->)\s*+)*+<(?:!doctype\s+html|html[\s>])", re.I | re.S
)
_RST_DIRECTIVE = re.compile(rb"^[ \t]*\.\. [\w:-]+::", re.M)
_RST_TITLE = re.compile(rb"^\w[^\n]{2,}\n([=~^*-])\1{3,}[ \t]*$", re.M)
_MD_HEADING = re.compile(rb"^#{1,6} \S", re.M)
_MD_MARK = re.compile(rb"^```|^~~~|\]\(https?://|^\|[ :|-]+\|\s*$|^#{2,6} \S", re.M)
# Marks of AsciiDoc that neither Markdown nor reStructuredText has.
_ADOC_HEADING = re.compile(rb"^={1,5} \S|^\w[^\n]{2,}\n([=~-])\1{3,}[ \t]*$", re.M)
_ADOC_MARK = re.compile(
    rb"^\[(?:source|cols|options|%header|NOTE|TIP|WARNING|IMPORTANT|CAUTION|verse|\[)"
    rb"|^\|===[ \t]*$|^(?:include|ifdef|image)::\S*\[|^:[\w-]+:(?: |$)|^-{4,}\n[^\n]"
    rb"|\w::[ \t]*$|<<[\w:-]+[,>]|\blinkgit:|\blinkperf:",
    re.M,
)
_LATEX_START = re.compile(
    rb"(?:\s*%[^\n]*\n)*\s*\\(?:documentclass|documentstyle|begin\{document\})"
)
# Comments come first; definitions of macros may come before the title.
_ROFF_START = re.compile(
    rb"(?:['.]?[ \t]*\\\"[^\n]*\n|\.?[ \t]*\n)*\.[ \t]*(?:TH|Dd|Dt|so|de|ds|ie|if|nr)\b"
)
_ROFF_TITLE = re.compile(rb"^\.(?:TH|Dt|so)[ \t]+\S", re.M)


def extension_format(name: str) -> Format | None:
    """The format that a file name claims."""
    if code_language(name):
        return Format.CODE
    return _EXTENSIONS.get(_extension(name))


def code_language(name: str) -> str:
    """The language of a code file by its name, empty for any other file."""
    is_cmake = PurePath(name).name == "CMakeLists.txt"
    return "cmake" if is_cmake else CODE_LANGUAGES.get(_extension(name), "")


def _extension(name: str) -> str:
    return PurePath(name).suffix.lower().lstrip(".")


def detect(data: bytes, name: str) -> Format:
    """The format of a file; its bytes win over its name. Raises UnsupportedFormat for binary data,
    and ParseFailed for an empty or damaged file."""
    if not data.strip():
        raise ParseFailed(
            f"{name} is empty", hint="Upload the file again; it arrived with no content."
        )
    if (by_magic := _by_magic(data, name)) is not None:
        return by_magic
    promised = extension_format(name)
    _refuse_binary(data, name, promised)
    if promised is Format.CODE:
        return promised
    if (by_content := _by_content(data)) is not None:
        return by_content
    if promised in (None, Format.TEXT, Format.PDF, Format.DOCX):
        return _sniff_prose(data)
    return promised


def _by_magic(data: bytes, name: str) -> Format | None:
    if b"%PDF-" in data[:_PDF_HEADER_WITHIN]:
        return Format.PDF
    if data.startswith(b"PK\x03\x04"):
        return _zip_format(data, name)
    if data.startswith((_OLE, b"{\\rtf")):
        return Format.OTHER
    for magic, what in _NO_DOCUMENT.items():
        if re.match(magic, data, re.DOTALL):
            raise UnsupportedFormat(f"{name} is {what}, not a document", hint=_FORMATS_HINT)
    return None


def container(data: bytes) -> str | None:
    """The usual extension of an office file by its bytes (`pptx`, `rtf`, `msg`, ...), or None if
    they do not tell. Raises ParseFailed for an encrypted office file."""
    if data.startswith(b"{\\rtf"):
        return "rtf"
    if data.startswith(_OLE):
        return _ole_extension(data)
    if data.startswith(b"PK\x03\x04") and zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = set(archive.namelist())
            stated = b""
            if "mimetype" in members:
                with archive.open("mimetype") as member:
                    stated = member.read(_LONGEST_MIMETYPE)
        for path, extension in _ZIP_MEMBERS.items():
            if path in members:
                return extension
        return _MIMETYPES.get(stated.strip())
    return None


def _ole_extension(data: bytes) -> str | None:
    """By the stream names in a compound file (OLE), as Office before 2007 and Outlook write it."""
    for stream, extension in _OLE_STREAMS.items():
        if stream.encode("utf-16-le") in data:
            if extension is None:
                raise ParseFailed(
                    "the file is encrypted", hint="Save it without a password and upload that."
                )
            return extension
    return None


def _zip_format(data: bytes, name: str) -> Format:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.namelist()
    except zipfile.BadZipFile as error:
        raise ParseFailed(
            f"{name} is a damaged zip container: {error}",
            hint="The file was probably cut off; export or upload it again.",
        ) from error
    if "word/document.xml" in members:
        return Format.DOCX
    if "mimetype" in members or any(m.startswith(("ppt/", "xl/")) for m in members):
        return Format.OTHER
    raise UnsupportedFormat(
        f"{name} is a zip archive",
        hint="Unpack it and upload the documents inside; one upload may have several files.",
    )


def _refuse_binary(data: bytes, name: str, promised: Format | None) -> None:
    if _extension(name) in _BINARY_EXTENSIONS:
        raise UnsupportedFormat(
            f"{name} is named like binary data (.{_extension(name)}), not like a document",
            hint=_FORMATS_HINT,
        )
    sample = data[:_SNIFF_BYTES]
    size = len(sample)
    control = size - len(sample.translate(None, _CONTROL))
    is_text = control <= _MAX_CONTROL_SHARE * size and sample.count(0) <= _MAX_NUL_SHARE * size
    if is_text or _utf16(sample):
        return
    if promised in (Format.PDF, Format.DOCX):
        raise ParseFailed(
            f"{name} does not start like a {promised.value} file",
            hint="It is damaged or encrypted; open it locally, save it again and upload that.",
        )
    raise UnsupportedFormat(f"{name} is binary data, not a document", hint=_FORMATS_HINT)


def _by_content(data: bytes) -> Format | None:
    start = data[:_SNIFF_BYTES].removeprefix(b"\xef\xbb\xbf")
    if _HTML_START.match(start):
        return Format.HTML
    if start.lstrip().startswith(b"{") and b'"nbformat"' in data and b'"cells"' in data:
        return Format.NOTEBOOK
    return None


def _sniff_prose(data: bytes) -> Format:
    """Plain text, unless the text has the marks of a markup language."""
    sample = data[:_SNIFF_BYTES].removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n")
    if _ROFF_START.match(sample) and _ROFF_TITLE.search(sample):
        return Format.ROFF
    if _LATEX_START.match(sample):
        return Format.LATEX
    if _RST_DIRECTIVE.search(sample) and _RST_TITLE.search(sample):
        return Format.RST
    if _MD_HEADING.search(sample) and len(_MD_MARK.findall(sample)) >= 2:
        return Format.MARKDOWN
    if _ADOC_HEADING.search(sample) and len(_ADOC_MARK.findall(sample)) >= 2:
        return Format.ASCIIDOC
    return Format.TEXT


def _utf16(sample: bytes) -> str | None:
    if sample.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    half = len(sample) // 2
    if half >= 8 and sample.count(0) > 0.6 * half:
        if sample[1::2].count(0) > 0.8 * half:
            return "utf-16-le"
        if sample[0::2].count(0) > 0.8 * half:
            return "utf-16-be"
    return None


def decode(data: bytes, *, is_html: bool = False) -> Decoded:
    """The text of a text format, without BOM, NUL and base64, with `\\n` line ends."""
    text, warnings = _to_text(data, is_html)
    if "\x00" in text:
        warnings = (*warnings, f"{text.count(chr(0))} NUL characters removed")
        text = text.replace("\x00", "")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return Decoded(drop_base64(text), warnings)


def _to_text(data: bytes, is_html: bool) -> tuple[str, tuple[str, ...]]:
    wide = _utf16(data[:_SNIFF_BYTES])
    if wide:
        return data.decode(wide, errors="replace").lstrip("\ufeff"), (f"decoded as {wide}",)
    try:
        return data.decode("utf-8-sig"), ()
    except UnicodeDecodeError:
        pass
    repaired = data.decode("utf-8-sig", errors="replace")
    bad, wide_chars = repaired.count("\ufffd"), sum(c > "\x7f" for c in repaired)
    # Text in another charset hardly ever contains valid UTF-8 sequences.
    if bad * 10 < wide_chars:
        return repaired, (f"{bad} characters are not valid UTF-8 and were replaced",)
    from bs4.dammit import UnicodeDammit  # 0.2 s, and most text is UTF-8

    guess = UnicodeDammit(data, user_encodings=["cp1252"] if not is_html else [], is_html=is_html)
    if guess.unicode_markup is None:
        return repaired, (f"unknown character set: {bad} characters replaced",)
    return guess.unicode_markup, (f"not UTF-8: decoded as {guess.original_encoding}",)


def drop_base64(text: str) -> str:
    """The text without data URIs and long base64 strings, such as embedded images."""
    if "base64," in text:
        text = _DATA_URI.sub("", text)
    text = _LONG_BASE64.sub(_unless_plain, text)
    return _WRAPPED_BASE64.sub(_unless_plain, text)


def _unless_plain(match: re.Match[str]) -> str:
    return "" if _MIXED.match(match[0]) else match[0]
