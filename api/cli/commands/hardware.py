"""`kernlore hardware`: the registry of chips, their facts, what is installed, what is covered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from api.cli.backends import actor, open_target, read_settings
from api.cli.options import AsJson, DataDir, Url
from api.cli.output import Json, note, pairs, show, table
from kb.errors import Conflict, InvalidRequest

app = typer.Typer(help="Hardware: descriptions, facts, coverage.")

HardwareId = Annotated[str, typer.Argument(help="Id, alias or name of a hardware.")]


@app.command("list")
def list_(data_dir: DataDir = None, url: Url = None, as_json: AsJson = False) -> None:
    """List the registered chips, families and vendors."""
    with open_target(data_dir, url) as target:
        specs = target.hardware()
    show(
        specs,
        as_json,
        lambda rows: table(
            ("hardware", "kind", "parent", "languages", "name"),
            [
                (row["id"], row.get("kind"), row.get("parent"), row["languages"], row.get("name"))
                for row in rows
            ],
        ),
    )


@app.command("show")
def show_(
    hardware_id: HardwareId, data_dir: DataDir = None, url: Url = None, as_json: AsJson = False
) -> None:
    """Show a chip, family or vendor: lineage, toolchains, facts."""
    with open_target(data_dir, url) as target:
        spec = target.hardware_one(hardware_id)
        facts = {} if as_json else target.facts(hardware_id, proposed=False)
    show(spec, as_json, lambda hardware: _hardware_text(hardware, facts))


def _hardware_text(hardware: Json, facts: Json) -> str:
    known = ("id", "name", "vendor", "kind", "aliases", "languages", "summary")
    head = pairs({key: hardware.get(key) for key in known})
    lineage = " > ".join(hardware.get("lineage") or ())
    chains = hardware.get("toolchains") or {}
    return "\n".join(
        [
            head,
            f"lineage     {lineage}",
            f"toolchains  {', '.join(chains) or 'none'}",
            "",
            _facts_text(facts),
        ]
    )


@app.command("facts")
def list_facts(
    hardware_id: HardwareId,
    proposed: Annotated[
        bool,
        typer.Option(
            "--proposed", help="Facts that were read from tables and wait for a decision."
        ),
    ] = False,
    accept: Annotated[
        list[str] | None, typer.Option(help="Accept this fact (id); repeat for more.")
    ] = None,
    reject: Annotated[
        list[str] | None, typer.Option(help="Reject this fact (id); repeat for more.")
    ] = None,
    set_: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--set", metavar="FACT_ID VALUE", help="Set the fact FACT_ID to VALUE, and accept it."
        ),
    ] = None,
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List facts with their sources. With --accept, --reject or --set, decide about facts."""
    patches: list[tuple[str, dict[str, Any]]] = [(i, {"status": "accepted"}) for i in accept or ()]
    patches += [(i, {"status": "rejected"}) for i in reject or ()]
    if set_ is not None:
        patches.append((set_[0], _value(set_[1])))
    with open_target(data_dir, url) as target:
        if patches:
            known = target.hardware_one(hardware_id)["id"]
            decided = [target.patch_fact(i, {**patch, "actor": actor()}) for i, patch in patches]
            answer: Json = {"hardware": known, "facts": decided}
        else:
            answer = target.facts(hardware_id, proposed=proposed)
    show(answer, as_json, _facts_text)


def _value(text: str) -> dict[str, Any]:
    """A number in the fact's own unit, or a text."""
    try:
        return {"number": float(text), "text": text}
    except ValueError:
        return {"text": text}


def _facts_text(answer: Json) -> str:
    """A few lines for each fact: the value, its source, how it was derived."""
    if not answer["facts"]:
        return "no facts"
    lines = [line for fact in answer["facts"] for line in _fact_lines(fact)]
    others = answer.get("other_kinds") or ()
    if others:
        lines += ["", "also stated for these keys:"]
        lines += [line for fact in others for line in _fact_lines(fact)]
    clashes = len(answer.get("conflicts") or ())
    if clashes:
        lines.append(f"{clashes} keys have sources that disagree; see --json")
    return "\n".join(lines)


def _fact_lines(fact: Json) -> Iterator[str]:
    unit = "" if fact["unit"] == "text" else f" {fact['unit']}"
    status = "" if fact["status"] == "accepted" else f", {fact['status']}"
    of = f", of {fact['hardware_id']}" if fact.get("inherited") else ""
    value = f"{fact['key']} = {_exact(fact['value'])}{unit}"
    yield f"{value}  ({fact['kind']}{status}{of}; {fact['id']})"
    source = [fact["title"], fact["publisher"], fact["locator"]]
    place = ", ".join(part for part in source if part)
    read = f" (read {fact['date']})" if fact["date"] else ""
    link = f"  {fact['url']}" if fact["url"] else ""
    if place:
        yield f"    {place}{read}{link}"
    if fact["formula"]:
        yield f"    = {fact['formula']}"
    if fact["note"]:
        yield f"    {fact['note']}"


def _exact(value: float | str) -> str:
    """Every digit; whole numbers without a point, large round ones as 3.35e+12."""
    if isinstance(value, str):
        return value
    if value == int(value):
        whole = str(int(value))
        return f"{value:.6g}" if len(whole) > 9 and float(f"{value:.6g}") == value else whole
    return repr(value)


@app.command("new")
def new(
    hardware_id: Annotated[str, typer.Argument(help="Id of the new hardware.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write. Default: print it.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a commented hardware.toml to fill in."""
    from kb.hardware.writer import hardware_template

    text = hardware_template(hardware_id)
    if output is not None:
        if output.exists() and not force:
            raise Conflict(f"{output} exists", hint="Give another -o, or --force to replace it.")
        output.write_text(text, encoding="utf-8")
        note(f"wrote {output}; fill it in, then `kernlore hardware add {output}`")
    answer = {"id": hardware_id, "file": str(output) if output else None, "text": text}
    show(answer, as_json, lambda a: "" if output is not None else str(a["text"]).rstrip("\n"))


@app.command("add")
def add(
    file: Annotated[Path, typer.Argument(help="A hardware.toml file.")],
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Register a hardware, or replace its description."""
    import tomllib

    from kb.hardware.schema import parse_hardware

    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{file} is not UTF-8: {error}", hint="Save it as UTF-8.") from error
    parse_hardware(text, str(file))  # refuses what is incomplete, with the file's name
    with open_target(data_dir, url) as target:
        added = target.add_hardware(tomllib.loads(text), str(file))
    show(added, as_json, lambda a: f"{a.get('outcome', 'registered')} {a.get('id')}")


@app.command("detect")
def detect(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the devices of this machine as hardware."""
    from ingestion.builtin import builtin_hardware
    from kb.hardware.detection import probe
    from kb.hardware.lineage import find

    settings = read_settings(data_dir)
    known = {spec.id: spec for spec in builtin_hardware(settings.knowledge_dir)}
    if (settings.data_dir / "catalog.sqlite").exists():
        from kb.catalog import open_catalog
        from kb.catalog.hardware import HardwareRegistry

        known |= HardwareRegistry(open_catalog(settings.data_dir)).all()
    probed = probe(lambda name: find(name, known))
    for remark in probed.notes:
        note(remark)
    show(
        probed.devices,
        as_json,
        lambda rows: table(
            ("hardware", "kind", "device", "driver", "detected by"),
            [
                (row["hardware_id_hint"], row["kind"], row["name"], row["driver"], row["how"])
                for row in rows
            ],
        ),
    )


@app.command("coverage")
def coverage(
    hardware_id: HardwareId, data_dir: DataDir = None, url: Url = None, as_json: AsJson = False
) -> None:
    """Show what is known about a hardware, and what is missing."""
    with open_target(data_dir, url) as target:
        answer = target.coverage(hardware_id)
    show(answer, as_json, lambda c: coverage_text(c, signals=True))


def coverage_text(coverage: Json, *, signals: bool = False) -> str:
    """The topics that something is known about, and the most useful ones that are missing. With
    `signals`, also every signal, covered or not.
    """
    states = Counter(subject["state"] for subject in coverage["signals"])
    lines = [
        f"coverage of {coverage['hardware']}: {coverage['documents']} documents,"
        f" {coverage['passages']} passages, {len(coverage['facts_known'])} facts;"
        f" signals: {states['covered']} covered, {states['thin']} thin, {states['missing']} missing"
    ]
    if signals:
        lines.append(_subjects("signal", coverage["signals"]))
    known = [topic for topic in coverage["topics"] if topic["state"] != "missing"]
    if known:
        lines.append(_subjects("topic", known))
    unknown = len(coverage["topics"]) - len(known)
    if unknown:
        lines.append(f"{unknown} topics that nothing is known about")
    if coverage["missing_topics"]:
        lines.append("most useful to add:")
        lines += [f"  {row['topic']}: {row['upload']}" for row in coverage["missing_topics"]]
    return "\n".join(lines)


def _subjects(name: str, subjects: Sequence[Json]) -> str:
    return table(
        (name, "state", "own", "inherited", "documents"),
        [(s["id"], s["state"], s["own"], s["inherited"], s["documents"]) for s in subjects],
    )
