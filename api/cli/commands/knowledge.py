"""`kernlore knowledge` and `kernlore signals`: what is known, and checks of a folder of it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.backends import Target, open_target, opened, read_settings, send_logs_to_stderr
from api.cli.options import AsJson, DataDir, Url
from api.cli.output import Json, note, shortened, show, table
from kb.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from ingestion.builtin.linter import Vocabulary

app = typer.Typer(help="Browse and check what is known.")


@app.callback()
def group() -> None:
    """Browse and check what is known."""


@app.command("tree")
def tree(
    path: Annotated[
        str, typer.Argument(help="A path like hardware/h100/memory. Default: the root.")
    ] = "",
    depth: Annotated[int, typer.Option(min=1, max=8, help="Levels to show.")] = 2,
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show the tree of knowledge with counts."""
    with open_target(data_dir, url) as target:
        node = _subtree(target, path, depth)
    show(node, as_json, lambda root: "\n".join(_lines(root, 0)))


def _subtree(target: Target, path: str, depth: int) -> Json:
    """A node of the tree with its children, down to `depth` levels."""
    node = dict(target.knowledge(path))
    if depth > 1:
        node["children"] = [
            {**child, **_subtree(target, child["path"], depth - 1)} for child in node["children"]
        ]
    return node


def _lines(node: Json, level: int) -> Iterator[str]:
    indent = "  " * level
    counts = f"{node['documents']} documents, {node['passages']} passages"
    yield f"{indent}{node['title']}  ({counts})  {node['path']}".rstrip()
    for child in node.get("children") or ():
        yield from _lines(child, level + 1)
    for text in node.get("texts") or ():
        yield f"{indent}  {text['id']}  {shortened(text['text'], 160)}"
    if node.get("hint"):
        yield f"{indent}hint: {node['hint']}"


@app.command("recipes")
def recipes(
    hardware: Annotated[
        str, typer.Option(help="Only recipes for this chip, its family or its vendor.")
    ] = "",
    accept: Annotated[str | None, typer.Option(metavar="ID", help="Accept this recipe.")] = None,
    reject: Annotated[
        str | None, typer.Option(metavar="ID", help="Reject this recipe: it is never used.")
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List recipes proposed from uploaded manuals. They come from code samples; a person accepts or
    rejects them."""
    with opened(data_dir) as local:
        from retrieval.documents import decide_proposed_recipe, list_proposed_recipes

        if accept is not None:
            decide_proposed_recipe(local.services, accept, "accepted")
        if reject is not None:
            decide_proposed_recipe(local.services, reject, "rejected")
        rows = list_proposed_recipes(local.services, hardware)
    show(rows, as_json, _recipe_lines)


def _recipe_lines(recipes: list[Json]) -> str:
    """Each recipe with its source, the values of its parameters, and its constraints."""
    if not recipes:
        return (
            "no recipe is proposed: they come from code samples of uploaded manuals"
            " (`kernlore ingest`); `kernlore skills list` has those of skills"
        )
    lines = []
    for recipe in recipes:
        lines.append(
            f"{recipe['id']}  {recipe['status']}  {recipe['language']} on"
            f" {', '.join(recipe['hardware'])}: {recipe['name']}"
        )
        lines.append(f"  {recipe['document_title']}: {' > '.join(recipe['section'][1:])}")
        for parameter in recipe["body"]["parameters"]:
            values = ", ".join(map(str, parameter["values"]))
            lines.append(
                f"  {parameter['name']} ({parameter['role']}, {parameter['about']}): {values}"
            )
        for constraint in recipe["body"]["constraints"]:
            lines.append(f"  {constraint['predicate']}  [{constraint['why']}]")
    return "\n".join(lines)


ChipOption = Annotated[str, typer.Option(help="Hardware id, see `kernlore hardware list`.")]


Correct = Annotated[str | None, typer.Option(metavar="ID", help="Correct the card with this id.")]
CardField = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=TEXT",
        help="With --correct: signature, meaning or example and its text; repeat for more.",
    ),
]
Proposed = Annotated[
    bool, typer.Option("--proposed", help="List what a language model has proposed instead.")
]
AcceptCards = Annotated[
    list[str] | None,
    typer.Option(metavar="ID", help="Accept this proposed card; repeat for more."),
]
RejectCards = Annotated[
    list[str] | None,
    typer.Option(metavar="ID", help="Reject this proposed card; repeat for more."),
]
Propose = Annotated[
    bool,
    typer.Option(
        "--propose",
        help="Ask a language model for cards of the sections that name things in code and gave"
        " none. What is not in the section word for word is thrown away.",
    ),
]
CardModel = Annotated[
    str, typer.Option(metavar="NAME", help="With --propose: the model's litellm name.")
]
CardApiBase = Annotated[
    str | None,
    typer.Option(
        help="With --propose: address of an OpenAI-compatible server. Default: that of the"
        " provider."
    ),
]
MostSections = Annotated[
    int, typer.Option(min=1, help="With --propose: ask about at most this many sections.")
]


@app.command("symbols")
def symbols(
    hardware: ChipOption,
    query: Annotated[
        str, typer.Option("--query", "--q", "-q", help="A name, or words about it.")
    ] = "",
    correct: Correct = None,
    field: CardField = None,
    proposed: Proposed = False,
    accept: AcceptCards = None,
    reject: RejectCards = None,
    propose: Propose = False,
    models: CardModel = "",
    api_base: CardApiBase = None,
    sections: MostSections = 50,
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """List the names of a chip's languages. Each has its signature and limits.

    With --propose, a language model proposes cards; none is used before a person accepts it.
    """
    if propose:
        if url is not None:
            raise InvalidRequest("--propose with --url", hint="Run it where the data directory is.")
        return _propose(hardware, models, api_base, sections, data_dir, as_json)
    if models:
        raise InvalidRequest("--models without --propose", hint="Add --propose.")
    patches: list[tuple[str, dict[str, Any]]] = [(i, {"status": "accepted"}) for i in accept or ()]
    patches += [(i, {"status": "rejected"}) for i in reject or ()]
    if correct is not None:
        patches.append((correct, dict(entry.partition("=")[::2] for entry in field or ())))
    with open_target(data_dir, url) as target:
        if patches:
            rows = [target.patch_symbol(identity, patch) for identity, patch in patches]
        else:
            rows = target.symbols(hardware, query, "proposed" if proposed else "accepted")
    none = NO_PROPOSAL if proposed else NO_CARD
    show(rows, as_json, lambda cards: _symbol_lines(cards) or none)
    return 0


NO_CARD = "No card: upload a manual that defines the language's names."
NO_PROPOSAL = "No proposed card: --propose asks a language model for some."


def _propose(
    hardware: str,
    models: str,
    api_base: str | None,
    sections: int,
    data_dir: Path | None,
    as_json: bool,
) -> int:
    """Have cards proposed. 1 where the model failed before the end."""
    from api.card_proposals import propose_symbols, section_model

    model = section_model(models, api_base)
    with opened(data_dir) as local:
        report = propose_symbols(local.services, hardware, model, sections, note).as_json()
    show(report, as_json, _proposed_lines)
    return 1 if report["stopped"] else 0


def _proposed_lines(report: Json) -> str:
    lines = [
        f"{report['sections']} sections of {report['hardware']} name things in code and gave no"
        f" card: {report['asked']} asked, {report['reused']} answered before,"
        f" {report['left']} left",
        f"{report['proposed']} cards proposed, {len(report['kept'])} kept;"
        f" {report['fields_kept']} of {report['fields_proposed']} texts kept",
    ]
    lines += [f"  refused, {why}: {count}" for why, count in report["refused"].items()]
    lines += [f"  not in the section, {name}: {n}" for name, n in report["dropped"].items()]
    lines += [f"  no use: {problem}" for problem in report["unusable"]]
    if report["stopped"]:
        lines.append(f"stopped: {report['stopped']}")
    if report["kept"]:
        lines.append(
            f"`kernlore knowledge symbols --hardware {report['hardware']} --proposed` lists them;"
            " --accept ID, --reject ID"
        )
    return "\n".join(lines)


def _symbol_lines(rows: list[Json]) -> str:
    lines = []
    for row in rows:
        head = row["signature"] or row["name"]
        origin = "" if row["origin"] == "structure" else f"  ({row['status']}, {row['origin']})"
        lines.append(f"{row['id']}  {row['kind']}  {row['name']}  {head}{origin}")
        lines += [f"    {operand}: {meaning}" for operand, meaning in row["operands"] if meaning]
        lines += [f"    {text}" for text in (row["meaning"], *row["limits"]) if text]
        if row["example"]:
            lines.append(f"    example: {row['example']}")
        lines.append(f"    {row['document_title']}: {' > '.join(row['path'][-2:])}")
    return "\n".join(lines)


@app.command("samples")
def samples(
    hardware: Annotated[
        str | None,
        typer.Option(
            help="Hardware id, see `kernlore hardware list`. Needed unless --check is given."
        ),
    ] = None,
    operator: Annotated[str, typer.Option(help="Only kernels that compute this.")] = "",
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Compile the built-in kernels with what is installed here. Exits 1 if one is"
            " refused.",
        ),
    ] = False,
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """List whole kernels for a chip.

    They come from runs and from documents, built-in ones too.
    """
    if check:
        return _check_samples(hardware, as_json)
    if hardware is None:
        raise InvalidRequest("no hardware", hint="Name a chip with --hardware, or add --check.")
    with open_target(data_dir, url) as target:
        rows = target.samples(hardware, operator)
    show(rows, as_json, _sample_lines)
    return 0


def _check_samples(hardware: str | None, as_json: bool) -> int:
    """1 where a kernel is refused that a compiler took before."""
    from optimizer.evaluation.sample_checks import check_samples

    rows = []
    for result in check_samples(read_settings().knowledge_dir, hardware):
        note(f"{result.sample}: {result.outcome}")
        rows.append(result.as_json())
    show(rows, as_json, _check_lines)
    return 1 if any(row["outcome"] == "refused" for row in rows) else 0


def _check_lines(rows: list[Json]) -> str:
    heads = ("sample", "outcome", "toolchain", "target", "date")
    lines = [table(heads, [tuple(row[name] for name in heads) for row in rows])]
    for row in rows:
        broken = ", which compiled before" if row["broken"] else ""
        if row["outcome"] in ("refused", "not checked"):
            lines.append(f"{row['sample']}{broken}: {row['detail']}")
    return "\n".join(lines)


def _sample_lines(rows: list[Json]) -> str:
    lines = []
    for row in rows:
        source = row["document_title"] or f"run {row['run_id']}"
        lines.append(
            f"{row['id']}  {row['status']}  {row['operator'] or 'operator unknown'}"
            f"  {row['title']}  [{source}]"
        )
        lines += [f"    {line}" for line in row["code"].splitlines()]
    return "\n".join(lines) or (
        "No whole kernel: upload a manual that shows one, in a code block with its language, from"
        " the line that names it to its end. `samples_left_out` of a document's job says what a"
        " block lacks (`kernlore jobs show`)."
    )


@app.command("lint")
def lint(
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="A folder in the format of hw_manuals/FORMAT.md. Default: the built-in one."
        ),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Check a folder of knowledge for mistakes. Exits 1 if there are any."""
    from ingestion.builtin.linter import lint_folder

    folder = folder or read_settings().knowledge_dir
    if not folder.is_dir():
        raise NotFound(f"{folder} is no folder", hint="Give the folder that contains hardware/.")
    findings = lint_folder(folder, vocabulary())
    show(findings, as_json, lambda rows: "\n".join(f"{r['path']}: {r['message']}" for r in rows))
    return 1 if findings else 0


@app.command("vectors")
def vectors(
    folder: Annotated[
        Path | None,
        typer.Argument(help="A folder of knowledge. Default: the built-in one."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the readings and vectors that ship with a folder.

    Run it after a change of the documents. A new data directory takes both from there; what is not
    there is read and embedded as any other document is.
    """
    from api.services import open_services
    from ingestion.builtin.precomputed import RecordingReader, embed_folder, write_readings

    send_logs_to_stderr("warning")
    folder = folder or read_settings().knowledge_dir
    with tempfile.TemporaryDirectory() as scratch:
        settings = read_settings(Path(scratch)).model_copy(update={"knowledge_dir": folder})
        services = open_services(settings)
        try:
            services.load_builtin()
            reader = RecordingReader(services.shipped_readings, services.embedder, services.tagger)
            services.worker(reader, anew=True).drain()
            write_readings(folder, reader.readings)
            path = embed_folder(services.catalog, folder, services.embedder.fingerprint)
            count = services.vectors()[0]
        finally:
            services.close()
    row = {"path": str(path), "passages": count, "bytes": path.stat().st_size}
    show(row, as_json, lambda r: f"{r['path']}: {r['passages']} passages, {r['bytes']:,} bytes")


def vocabulary() -> Vocabulary:
    """The names that knowledge may refer to in this version of the service."""
    from ingestion.builtin.linter import Vocabulary
    from retrieval.diagnose.linear_patterns import UnsafePattern, compile_linear
    from retrieval.diagnose.metrics import load_metrics
    from retrieval.diagnose.signals import load_signals

    def signature_problem(pattern: str) -> str | None:
        try:
            compile_linear(pattern)
        except UnsafePattern as problem:
            return str(problem)
        return None

    names = frozenset(metric.name for metric in load_metrics())
    return Vocabulary(load_signals().ids, names, signature_problem)


def signals(data_dir: DataDir = None, url: Url = None, as_json: AsJson = False) -> None:
    """List the run-time signals. A signal names what went wrong, such as memory_bound."""
    with open_target(data_dir, url) as target:
        rows = target.signals()
    show(
        rows,
        as_json,
        lambda rows: table(("signal", "group", "title"), [_row(row) for row in rows]),
    )


def _row(signal: Json) -> tuple[Any, ...]:
    return (signal["id"], signal.get("group"), signal.get("title"))
