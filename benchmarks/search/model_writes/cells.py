"""One cell: a model writes kernels for one problem on one chip in one arm, until one is right.

A cell is a run of the product's own search with models as its only proposers. Its
transcripts and measurements are stored, so that it can be replayed without a model.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from api.cli.target import CommandTarget
from benchmarks.search.model_writes.chips import EMULATED, Chip
from kb.catalog.knowledge import symbols as symbol_rows
from kb.prompt_tokens import count_tokens
from kb.scope import ALL_ACCESS
from optimizer.evaluation.evaluate import evaluate_files
from optimizer.evaluation.records import CaseTiming
from optimizer.search.goal import Goal
from optimizer.search.knowledge import KnowledgeSource, ShownKnowledge
from optimizer.search.records import Node
from optimizer.search.runs.knowledge import ServiceKnowledge
from optimizer.search.runs.optimize import FinishedRun, optimize
from optimizer.search.synthesizers.base import ModelCall
from optimizer.search.synthesizers.llm.settings import ModelOptions
from optimizer.search.tree import Tree
from retrieval.knowledge_base import KnowledgeBase
from retrieval.request import RetrieveRequest
from retrieval.search.names import names_in

FIRST_RIGHT = 1e-6  # a target that the first right kernel reaches


@dataclass(frozen=True)
class Attempt:
    """One candidate. `cost` is in the unit of its cell, `tokens` are those of its prompt, `symbols`
    is the share of the good kernel's names that its prompt has, `fresh` that of its lines that no
    earlier prompt had.
    """

    validity: str
    cost: int | None
    tokens: int
    symbols: float | None
    fresh: float
    error: str = ""


@dataclass(frozen=True)
class Cell:
    """What became of a cell. `good_cost` is that of the kernel to compare with, in `unit`: cycles,
    or executed instructions or packets.
    """

    family: str
    seed: int
    problem: str
    arm: str
    size: str
    model: str
    attempts: tuple[Attempt, ...]
    good_cost: int | None
    unit: str = "cycles"
    chip: str = ""

    @property
    def name(self) -> str:
        """Of its files."""
        of = self.chip or self.family
        return f"{of}-{self.seed}-{self.problem}-{self.size}-{self.arm}".replace(" ", "-")

    def first(self, *validities: str) -> int | None:
        """The number of the first attempt with one of these results, from 1."""
        numbers = (n for n, a in enumerate(self.attempts, 1) if a.validity in validities)
        return next(numbers, None)

    @property
    def first_right(self) -> int | None:
        """The number of the first right attempt."""
        return self.first("correct")

    @property
    def first_compiled(self) -> int | None:
        """The number of the first attempt that compiled."""
        return self.first("correct", "incorrect", "unsupported", "crashed", "timed_out", "rejected")


class _Silent:
    """A listener of a run that keeps what proposers said."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def node(self, node: Node, tree: Tree) -> None:
        """Nothing is shown."""

    def asking(self, asking: ModelCall) -> None: ...

    def log(self, message: str) -> None:
        """Remember it."""
        self.messages.append(message)


def run_cell(
    local: CommandTarget,
    chip: Chip,
    other: Chip,
    problem: str,
    arm: Arm,
    *,
    size: str,
    model: str,
    candidates: int,
    options: ModelOptions,
    out: Path,
) -> Cell:
    """Let the model write until a kernel is right or the candidates are spent; keep the result and
    the transcripts below `out`.
    """
    source = arm.source(local.services, chip, other) if arm.source is not None else None
    goal = Goal(
        language=chip.language,
        target=FIRST_RIGHT,
        candidates=candidates,
        knowledge=source is not None,
        memory="both" if arm.memory else "none",
        synthesizers=("llm",),
    )
    listener = _Silent()
    finished = optimize(
        local.services,
        chip.problem(problem),
        goal,
        chip.id,
        listener,
        models=replace(options, models=model),
        knowledge=source,
    )
    transcripts = local.services.settings.data_dir / "transcripts" / finished.run.id
    prompts = _prompts(transcripts)
    good, unit = good_cost(local, chip, problem)
    cell = Cell(
        chip.family.name,
        chip.seed,
        problem,
        arm.name,
        size,
        model,
        tuple(_attempts(finished, prompts, _good_names(local, chip, problem))),
        good,
        unit,
        chip.id if chip.family.name == EMULATED else "",
    )
    store(cell, transcripts, out)
    return cell


def replayed(local: CommandTarget, chip: Chip, cell: Cell, folder: Path) -> list[Node]:
    """The candidates of a stored cell, proposed from its transcripts and evaluated again without a
    model.
    """
    run = unpack_transcripts(folder, cell, local.services.settings.data_dir)
    goal = Goal(
        language=chip.language,
        target=FIRST_RIGHT,
        candidates=len(cell.attempts),
        knowledge=False,
        synthesizers=("llm",),
    )
    finished = optimize(
        local.services,
        chip.problem(cell.problem),
        goal,
        chip.id,
        _Silent(),
        models=ModelOptions(cell.model, replay=run),
    )
    return list(finished.tree.nodes[1:])


def good_cost(local: CommandTarget, chip: Chip, problem: str) -> tuple[int | None, str]:
    """The cost of the kernel to compare with, and its unit."""
    evaluation = evaluate_files(
        local.services,
        chip.problem(problem),
        chip.good_kernel(problem),
        hardware=chip.id,
        language=chip.language,
    )
    [timing] = evaluation.timings or [None]
    return cost_of(timing), timing.counted or "cycles" if timing is not None else ""


def cost_of(timing: CaseTiming | None) -> int | None:
    """The simulator's cycles, or the emulator's count."""
    if timing is None:
        return None
    return timing.cycles if timing.count is None else timing.count


def _good_names(local: CommandTarget, chip: Chip, problem: str) -> list[str]:
    """The chip's names that the good kernel uses."""
    with local.services.catalog.read() as connection:
        cards = symbol_rows.listed(connection, (chip.id,), access_scope=ALL_ACCESS)
    source = chip.good_kernel(problem).read_text(encoding="utf-8")
    return names_in(source, {card.name for card in cards if card.kind != "error"})


def _prompts(folder: Path) -> dict[int, str]:
    """The text of each step's last prompt, by step."""
    prompts: dict[int, str] = {}
    for path in sorted(folder.glob("*.json")):
        row = json.loads(path.read_text(encoding="utf-8"))
        prompts[row["step"]] = "\n".join(str(m.get("content", "")) for m in row["messages"][:2])
    return prompts


def _attempts(finished: FinishedRun, prompts: Mapping[int, str], names: list[str]) -> list[Attempt]:
    attempts = []
    shown: set[str] = set()
    for node in finished.tree.nodes[1:]:
        prompt = prompts.get(node.number, "")
        lines = {line for line in prompt.splitlines() if len(line) > 20}
        fresh = len(lines - shown) / len(lines) if lines else 0.0
        shown |= lines
        present = names_in(prompt, names)
        evaluation = node.evaluation
        timings = evaluation.timings if evaluation is not None else ()
        wrong = evaluation is not None and not evaluation.correct
        attempts.append(
            Attempt(
                evaluation.validity if evaluation is not None else node.state,
                cost_of(timings[0]) if timings else None,
                count_tokens(prompt),
                len(present) / len(names) if names else None,
                round(fresh, 3),
                (evaluation.message or evaluation.log)[:300] if wrong and evaluation else "",
            )
        )
    return attempts


# -- files


_EXCERPT = re.compile(r"(<excerpt [^>\n]*>).*?(</excerpt>)", re.S)
_QUOTED = re.compile(
    r"(--- KERNLORE-DATA (\w+) BEGIN (?:knowledge|tool-result) ---\n)"
    r".*?(\n--- KERNLORE-DATA \2 END ---)",
    re.S,
)


def store(cell: Cell, transcripts: Path, out: Path) -> None:
    """Write the result as JSON and the transcripts as a gzip file, those of built-in chips without
    the quoted documents, which others wrote. A replay needs the replies alone.
    """
    out.mkdir(parents=True, exist_ok=True)
    rows = [
        json.loads(path.read_text(encoding="utf-8")) for path in sorted(transcripts.glob("*.json"))
    ]
    for message in (message for row in rows if cell.chip for message in row["messages"]):
        content = _EXCERPT.sub(r"\1(left out)\2", str(message["content"]))
        if cell.arm in ("whole", "passages", "placebo") or message["role"] == "tool":
            content = _QUOTED.sub(r"\1(left out)\3", content)
        message["content"] = content
    packed = gzip.compress(json.dumps(rows).encode(), mtime=0)
    (out / f"{cell.name}.transcripts.json.gz").write_bytes(packed)
    (out / f"{cell.name}.json").write_text(json.dumps(asdict(cell), indent=1) + "\n")


def load_cells(folder: Path) -> list[Cell]:
    """All cells of a folder, by name."""
    cells = []
    for path in sorted(folder.glob("*.json")):
        row = json.loads(path.read_text(encoding="utf-8"))
        attempts = tuple(Attempt(**attempt) for attempt in row.pop("attempts"))
        cells.append(Cell(**row, attempts=attempts))
    return cells


def load_transcripts(folder: Path, cell: Cell) -> list[dict[str, Any]]:
    """The stored conversations of a cell."""
    packed = (folder / f"{cell.name}.transcripts.json.gz").read_bytes()
    rows: list[dict[str, Any]] = json.loads(gzip.decompress(packed))
    return rows


def unpack_transcripts(folder: Path, cell: Cell, data_dir: Path) -> str:
    """Lay the conversations of a cell where a run replays them from; returns the run's id."""
    rows = load_transcripts(folder, cell)
    run = str(rows[0]["run"])
    target = data_dir / "transcripts" / run
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for row in rows:
        path = target / f"{row['step']}-{row['attempt']}.json"
        path.write_text(json.dumps(row), encoding="utf-8")
    return run


# -- arms: our context, and the contexts to compare with

PASSAGES = 200  # shown within the budget


@dataclass(frozen=True)
class Arm:
    """One way to inform a model. `memory`: it sees the results of its earlier attempts; `tools`: it
    may call tools; `check`: its names are checked against the chip's before compiling; `second`:
    another problem was solved on the chip before. `source` makes the context; None for none.
    """

    name: str
    about: str
    source: Callable[[KnowledgeBase, Chip, Chip], KnowledgeSource] | None
    memory: bool = True
    tools: bool = False
    check: bool = False
    second: bool = False


@dataclass
class Fixed:
    """A source with a constant text."""

    text: str

    def consult(self, request: RetrieveRequest) -> ShownKnowledge:
        """The text. As the situation, it leaves the interface of the chip in the prompt."""
        return ShownKnowledge(situation=self.text)

    def report(self, retrieval_id: str, used: tuple[str, ...], node: Any) -> None:
        """Nothing is learnt."""


@dataclass
class Passages:
    """The best passages for the operator, as many as fit: plain top-k retrieval."""

    base: KnowledgeBase
    _shown: dict[str, str] = field(default_factory=dict)

    def consult(self, request: RetrieveRequest) -> ShownKnowledge:
        """The passages for the operator and language, the same in each attempt."""
        key = request.op or ""
        if key not in self._shown:
            words = f"write a {request.language or ''} kernel for {key.replace('_', ' ')}"
            passages = RetrieveRequest(
                query=words, hardware=request.hardware, task="ask", k=PASSAGES
            )
            parts: list[str] = []
            room = request.max_tokens
            for excerpt in self.base.retriever.retrieve(passages).excerpts:
                cost = count_tokens(excerpt.text) + 1
                if cost <= room:
                    parts.append(excerpt.text)
                    room -= cost
            self._shown[key] = "\n\n".join(parts)
        return ShownKnowledge(situation=self._shown[key])

    def report(self, retrieval_id: str, used: tuple[str, ...], node: Any) -> None:
        """Nothing is learnt."""


@dataclass
class Unadapted:
    """Our context of the first attempt, in every attempt."""

    inner: ServiceKnowledge
    _first: ShownKnowledge | None = None

    def consult(self, request: RetrieveRequest) -> ShownKnowledge:
        """The answer to the first request."""
        if self._first is None:
            self._first = self.inner.consult(
                replace(request, task="write", query=None, log=None, draft=None)
            )
        return self._first

    def report(self, retrieval_id: str, used: tuple[str, ...], node: Any) -> None:
        """Nothing is learnt."""


def _ours(base: KnowledgeBase, chip: Chip, other: Chip) -> KnowledgeSource:
    return ServiceKnowledge(base)


ARMS: Mapping[str, Arm] = {
    arm.name: arm
    for arm in (
        Arm("nothing", "no knowledge, no earlier attempts", None, memory=False),
        Arm("errors", "no knowledge; earlier attempts and their errors", None),
        Arm("whole", "the manual, whole", lambda base, chip, other: Fixed(chip.manual)),
        Arm(
            "passages",
            "the best passages, as many as fit",
            lambda base, chip, other: Passages(base),
        ),
        Arm("ours", "our context", _ours, check=True),
        Arm(
            "unadapted",
            "our context of the first attempt, unchanged",
            lambda base, chip, other: Unadapted(ServiceKnowledge(base)),
            check=True,
        ),
        Arm("tools", "our context, and tools", _ours, tools=True, check=True),
        Arm(
            "second",
            "our context, after another problem was solved on the chip",
            _ours,
            check=True,
            second=True,
        ),
        Arm(
            "placebo", "another chip's manual, whole", lambda base, chip, other: Fixed(other.manual)
        ),
    )
}
