"""Validity: with which versions of a tool a piece of knowledge was seen to hold, and how it relates
to the versions that a caller uses.

`tools.toml` defines the tools, their names and the lines in which they print their versions. Knows
neither the catalog nor requests.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

from kb.errors import InvalidRequest, nearest

Checked = Literal["ran", "compiled", "read"]
CHECKED: tuple[Checked, ...] = get_args(Checked)
_VERSION = re.compile(r"[vV]?(\d+(?:\.\d+)*)")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
FIELDS = ("tool", "min", "max", "target", "driver", "checked", "date", "holds")


# -- tools


@dataclass(frozen=True)
class VersionedTool:
    """A tool as texts and package managers name it. `parts` leading numbers of a version matter;
    `banners` match what it prints, with the version as group; `signs` match text about it."""

    id: str
    title: str
    names: tuple[str, ...]
    packages: tuple[str, ...]
    parts: int
    banners: tuple[re.Pattern[str], ...]
    signs: re.Pattern[str]

    def release(self, version: str) -> str:
        """The part of a version that matters: 13.0 of V13.0.88 for CUDA."""
        return ".".join(map(str, numbers_of(version)[: self.parts]))


@dataclass(frozen=True)
class KnownTools:
    """The known tools by id. `ptx_of_cuda` maps a release of CUDA to that of the PTX ISA."""

    by_id: Mapping[str, VersionedTool]
    ptx_of_cuda: Mapping[str, str]

    @cached_property
    def ids(self) -> Mapping[str, str]:
        """Ids by every name in lower case."""
        pairs = [(name, tool.id) for tool in self.by_id.values() for name in tool.packages]
        pairs += [
            (name.lower(), tool.id)
            for tool in self.by_id.values()
            for name in (*tool.names, tool.title, tool.id)
        ]
        return dict(pairs)

    def get(self, name: str) -> VersionedTool:
        """The tool of an id, name or package. Raises InvalidRequest, which names the nearest."""
        identity = self.ids.get(name.strip().lower())
        if identity is None:
            near = nearest(name.lower(), tuple(self.ids))
            hint = f"Use one of {', '.join(self.by_id)}" + (
                f"; did you mean {near[0]}?" * bool(near)
            )
            raise InvalidRequest(f"unknown tool {name!r}", hint=hint)
        return self.by_id[identity]


@cache
def load_tools() -> KnownTools:
    """The tools of `tools.toml`."""
    rows = tomllib.loads(Path(__file__).with_name("tools.toml").read_text(encoding="utf-8"))
    releases = rows.pop("ptx_of_cuda")
    tools = {
        identity: VersionedTool(
            identity,
            row["title"],
            tuple(row["names"]),
            tuple(row["packages"]),
            row["parts"],
            tuple(re.compile(p, re.MULTILINE) for p in row.get("banners", ())),
            re.compile(row.get("signs") or _any_of(row["title"], *row["names"]), re.IGNORECASE),
        )
        for identity, row in rows.items()
    }
    return KnownTools(tools, releases)


def _any_of(*names: str) -> str:
    return "|".join(rf"(?<!\w){re.escape(name)}(?!\w)" for name in names)


def numbers_of(version: str) -> tuple[int, ...]:
    """The leading numbers of a version; none if it does not begin with one."""
    match = _VERSION.match(version.strip())
    return tuple(map(int, match[1].split("."))) if match else ()


# -- the record


@dataclass(frozen=True)
class Validity:
    """The versions of a tool with which an entry was checked, both bounds included: "3.8" means
    3.8 with every later part, "" no bound. With `holds` false it fails with them. Without a tool it
    depends on none, as a figure of a datasheet. `target` is the chip, or the architecture that it
    was compiled for, `driver` the driver's version, `date` the day of the check."""

    tool: str = ""
    min: str = ""
    max: str = ""
    target: str = ""
    driver: str = ""
    checked: Checked = "read"
    date: str = ""
    holds: bool = True

    def side(self, version: str) -> int:
        """-1, 0 or 1: the version is older than the bounds, within, or newer."""
        own = numbers_of(version)
        for bound, side in ((numbers_of(self.min), -1), (numbers_of(self.max), 1)):
            part = own[: len(bound)]
            if bound and part != bound[: len(part)] and (part > bound) == (side > 0):
                return side
        return 0

    def mark(self, version: str) -> str:
        """A note for a reader with another version; "" if it holds for theirs."""
        side = self.side(version)
        if side == 0 or not self.holds:
            return ""
        title = load_tools().by_id[self.tool].title
        if side < 0 and self.min != self.max:
            return f"needs {title} {self.min}; yours is {version}"
        if self.min != self.max:
            return f"holds up to {title} {self.max}; yours is {version}"
        age = "newer" if side > 0 else "older"
        return f"{self.checked} with {title} {self.min}; yours is {age}, {version}"


def span_of(validity: Validity) -> str:
    """The versions in words: "Triton 3.8 or newer"."""
    title, low, high = load_tools().by_id[validity.tool].title, validity.min, validity.max
    if low == high:
        return f"{title} {low}" if low else title
    if not high:
        return f"{title} {low} or newer"
    return f"{title} up to {high}" if not low else f"{title} {low} to {high}"


def validity_of(row: Mapping[str, Any]) -> Validity:
    """The record of a table in a file of knowledge. Raises ValueError with the wrong field."""
    odd = set(row) - set(FIELDS)
    if odd:
        raise ValueError(f"unknown {', '.join(sorted(odd))}; a validity has {', '.join(FIELDS)}")
    texts = {k: str(v) for k, v in row.items() if k != "holds"}
    tool = texts.get("tool", "")
    if tool not in load_tools().by_id:
        raise ValueError(f"unknown tool {tool!r}; one of {', '.join(load_tools().by_id)}")
    for bound in ("min", "max"):
        if texts.get(bound) and not _VERSION.fullmatch(texts[bound]):
            raise ValueError(f"{bound} is {texts[bound]!r}; write a version such as 3.8")
    if not (texts.get("min") or texts.get("max")):
        raise ValueError("has neither min nor max")
    if texts.get("checked") not in CHECKED:
        raise ValueError(f"checked is {texts.get('checked')!r}; one of {', '.join(CHECKED)}")
    if not _DATE.fullmatch(texts.get("date", "")):
        raise ValueError(f"date is {texts.get('date')!r}; write it like 2026-11-25")
    if not isinstance(row.get("holds", True), bool):
        raise ValueError("holds is true or false")
    return Validity(**{**texts, "holds": row.get("holds", True)})


def seen_with(
    text: str, *, checked: Checked, date: str = "", target: str = ""
) -> tuple[Validity, ...]:
    """What a sentence says about versions: "nvcc V13.0.88, PyTorch 2.11" was seen with these two,
    "triton>=3.8" and "NKI 0.3 or later" hold from these on."""
    found = dict.fromkeys((tool.id, low, high) for tool, low, high in _named(text))
    return tuple(Validity(*bounds, target, "", checked, date) for bounds in found)


@lru_cache(maxsize=20_000)  # more than there are facts and rules
def of_source(
    text: str, *, checked: Checked, date: str = "", target: str = ""
) -> tuple[Validity, ...]:
    """What a source shows: the versions that its text names, else a statement without a tool."""
    seen = seen_with(text, checked=checked, date=date, target=target)
    return seen or (Validity(target=target, checked=checked, date=date),)


@cache
def _naming() -> re.Pattern[str]:
    names = sorted(load_tools().ids, key=len, reverse=True)
    return re.compile(
        rf"(?<![\w/-])({'|'.join(map(re.escape, names))})(?![\w+-])"
        r"(?:\s*(?:version|release|toolkit|source,?|of cuda|\(V?)\s*)?"
        r"\s*(>=|<=|==|)\s*[vV]?(\d+(?:\.\d+)*)(?![\w%])(\s+(?:or|and) (?:later|newer))?",
        re.IGNORECASE,
    )


def _named(text: str) -> Iterator[tuple[VersionedTool, str, str]]:
    """The tools in a sentence with the bounds that it states."""
    for match in _naming().finditer(text):
        tool = load_tools().get(match[1])
        release = tool.release(match[3])
        if match[2] == ">=" or match[4]:
            yield tool, release, ""
        elif match[2] == "<=":
            yield tool, "", release
        else:
            yield tool, release, release


# -- the versions of a caller


def checked_versions(versions: Mapping[str, str]) -> dict[str, str]:
    """Versions by the ids of their tools. Raises InvalidRequest for an unknown tool, and for text
    that does not begin with a number."""
    known = {}
    for name, version in versions.items():
        tool, text = load_tools().get(name), str(version).strip()
        if not numbers_of(text):
            raise InvalidRequest(
                f"{text!r} is no version of {name}", hint="Write it like 3.6 or V13.0.88."
            )
        known[tool.id] = text.lstrip("vV")
    return known


_PAIR = re.compile(r"\s*([A-Za-z][\w.+ -]*?)\s*(?:==|[=: ])\s*([vV]?\d[\w.+-]*)\s*")


def versions_in(text: str) -> dict[str, str]:
    """The versions in a text by tool: `triton=3.6, cuda 13.0`, or all that `read_versions` finds.
    Raises InvalidRequest for a text without any, and for a pair with an unknown tool."""
    pairs = [_PAIR.fullmatch(part) for part in re.split(r"[,;\n]", text.strip())]
    found = {pair[1]: pair[2] for pair in pairs if pair is not None}
    if len(found) < len(pairs) or (len(pairs) > 1 and "==" in text):
        found = read_versions(text)
    if not found:
        raise InvalidRequest(
            "no version of a known tool in `versions`",
            hint="Write triton=3.6, cuda=13.0; or give the output of pip freeze, a lock file or the"
            f" banners of compilers. Known tools: {', '.join(load_tools().by_id)}.",
        )
    return checked_versions(found)


def read_versions(text: str) -> dict[str, str]:
    """The versions that tools and package managers print: banners of compilers, `pip freeze`,
    `pip list`, `conda list`, lock files, a description of the environment. By tool; of several
    mentions the first counts."""
    found: dict[str, str] = {}
    text = text[:_MOST_READ]
    banners = text
    for tool in load_tools().by_id.values():
        for banner in tool.banners:
            if match := banner.search(banners):
                found.setdefault(tool.id, match[1])
                banners = banner.sub("", banners)
    for name, version in _packages(text):
        tool_id = load_tools().ids[name.lower().replace("_", "-")]
        found.setdefault(tool_id, version)
        if local := _LOCAL.search(version):
            found.setdefault(*_built_with(local))
    return found


_MOST_READ = 400_000  # characters of a text that is searched for versions
_LOCAL = re.compile(r"\+(cu|rocm)(\d[\d.]*)")


def _built_with(local: re.Match[str]) -> tuple[str, str]:
    """The toolkit in the local part of a version of PyTorch: +cu128 or +rocm6.4."""
    if local[1] == "rocm":
        return "rocm", local[2]
    return "cuda", f"{local[2][:-1]}.{local[2][-1]}"


@cache
def _package_lines() -> Sequence[re.Pattern[str]]:
    packages = [name for tool in load_tools().by_id.values() for name in tool.packages]
    name = "|".join(re.escape(n).replace(r"\-", "[-_]") for n in sorted(packages, key=len)[::-1])
    # Every repetition has a bound or ends at the line, so that any text is searched in linear time.
    version = r"(\d+(?:\.\d+){1,8}[^\s\"',;=]{0,60})"
    gap = r"[ \t]{0,40}"
    equals = rf"{gap}={{1,3}}{gap}"
    forms = (
        rf"^{gap}(?:[-#>]{gap})?[\"']?({name})[\"']?{equals}[\"']?{version}",  # pip, conda export
        rf"^{gap}({name})[ \t]{{1,80}}{version}(?:\s|$)",  # pip list, conda list
        rf"name = \"({name})\"\s{{0,9}}\nversion = \"{version}\"",  # uv.lock, poetry.lock
        # Pipfile.lock
        rf"\"({name})\"{gap}:\s{{0,9}}\{{[^{{}}]{{0,20000}}?\"version\"{gap}:{gap}\"=*{version}",
        rf"^{gap}({name}) @ \S{{0,300}}?[-_/]{version}(?:-cp|-py|\.tar)",
        rf"\[(?:pip3|conda)\][ \t]{{1,40}}({name})(?:==|[ \t]{{1,40}}){version}",  # collect_env
        rf"Successfully installed.{{0,4000}}?(?<=\s)({name})-{version}",
    )
    return tuple(re.compile(form, re.MULTILINE | re.IGNORECASE) for form in forms)


def _packages(text: str) -> Iterator[tuple[str, str]]:
    for form in _package_lines():
        for match in form.finditer(text):
            yield match[1], match[2]


def with_implied(versions: Mapping[str, str]) -> dict[str, str]:
    """The versions with those that follow from them: a CUDA toolkit has a ptxas of its number,
    and a ptxas reads one version of the PTX ISA."""
    tools = load_tools()
    full = dict(versions)
    if "cuda" in full:
        full.setdefault("ptxas", full["cuda"])
    release = tools.by_id["ptxas"].release(full.get("ptxas", ""))
    if release in tools.ptx_of_cuda:
        full.setdefault("ptx", tools.ptx_of_cuda[release])
    return full


# -- relation to the versions of a caller


@dataclass(frozen=True)
class Standing:
    """Relation of a piece of knowledge to a caller's versions. `holds`: it was seen with at least
    one of them, and nothing speaks against it; `off`: the marks say for what it holds instead;
    `false`: it fails with them. `unknown`: nothing is known about their tools."""

    stand: Literal["holds", "unknown", "off", "false"] = "unknown"
    marks: tuple[str, ...] = ()


UNKNOWN = Standing()


def standing(validities: Iterable[Validity], versions: Mapping[str, str]) -> Standing:
    """Relation of something with these validities to versions by tool. For each tool, one statement
    that admits the version is enough; a newer check of one version takes precedence over older
    ones."""
    by_tool: dict[str, list[Validity]] = {}
    for validity in validities:
        if validity.tool in versions:
            by_tool.setdefault(validity.tool, []).append(validity)
    marks: list[str] = []
    seen = False
    for tool, stated in by_tool.items():
        version = versions[tool]
        about = [v for v in stated if v.side(version) == 0]
        if about and not max(about, key=lambda v: (v.date, not v.holds)).holds:
            return Standing(
                "false", tuple(f"does not hold for {span_of(v)}" for v in about if not v.holds)
            )
        if any(v.holds for v in about):
            seen = True
        else:
            marks += _nearest_mark(stated, version)
    if marks:
        return Standing("off", tuple(dict.fromkeys(marks)))
    return Standing("holds") if seen else UNKNOWN


def _nearest_mark(stated: Sequence[Validity], version: str) -> list[str]:
    """The mark of the statement whose bounds are nearest to the version, of those with an open
    bound if there are any: what something needs says more than what it was seen with."""
    held = [v for v in stated if v.holds]
    positive = [v for v in held if not (v.min and v.max)] or held
    if not positive:
        return []
    own = numbers_of(version)

    def distance(validity: Validity) -> tuple[int, ...]:
        bound = numbers_of(validity.min if validity.side(version) < 0 else validity.max)
        pairs = zip((*own, 0, 0, 0)[:3], (*bound, 0, 0, 0)[:3], strict=True)
        return tuple(abs(a - b) for a, b in pairs)

    return [min(positive, key=distance).mark(version)]
