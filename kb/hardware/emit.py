"""A `HardwareSpec` as hardware.toml text. Reading the text back gives the same spec.

The standard library reads TOML but does not write it; this writes just the shapes that a spec has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from kb.hardware.spec import FactSpec, HardwareSpec, SignatureSpec, ToolchainSpec

_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_HEAD = ("id", "name", "vendor", "parent", "aliases", "languages", "kind", "summary")


def dump_hardware(spec: HardwareSpec) -> str:
    """The file that `parse_hardware` reads back as `spec`; empty entries are left out."""
    lines = list(_entries({name: getattr(spec, name) for name in _HEAD}))
    for fact in spec.facts:
        lines += ["", "[[facts]]", *_entries(_row(fact))]
    for signature in spec.signatures:
        lines += ["", "[[signatures]]", *_entries(_row(signature))]
    for language, toolchain in spec.toolchains.items():
        where = f"toolchains.{toml_key(language)}"
        row = _row(toolchain)
        env = row.pop("env")
        if row["timing"] == "wall":
            row.pop("timing")
        lines += ["", f"[{where}]", *_entries(row)]
        if env:
            lines += ["", f"[{where}.env]", *_entries(env, keep_empty=True)]
    return "\n".join(lines) + "\n"


def _row(item: FactSpec | SignatureSpec | ToolchainSpec) -> dict[str, Any]:
    return {entry.name: getattr(item, entry.name) for entry in fields(item)}


def _entries(table: Mapping[str, Any], *, keep_empty: bool = False) -> Iterator[str]:
    for key, value in table.items():
        if keep_empty or (value is not None and value not in ("", ())):
            yield f"{toml_key(key)} = {toml_value(value)}"


def toml_key(key: str) -> str:
    bare = key.isascii() and key.replace("-", "").replace("_", "").isalnum()
    return key if bare else _quoted(key)


def toml_value(value: str | int | float | tuple[str, ...]) -> str:
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(_quoted(item) for item in value) + "]"
    return _number(value)


def _number(value: int | float) -> str:
    # repr keeps every digit; "1e+16" is TOML, and so is "1e16" that people write
    return repr(value).replace("e+", "e")


def _quoted(text: str) -> str:
    escaped = "".join(
        _ESCAPES.get(char)
        or (f"\\u{ord(char):04x}" if ord(char) < 32 or ord(char) == 127 else char)
        for char in text
    )
    return f'"{escaped}"'
