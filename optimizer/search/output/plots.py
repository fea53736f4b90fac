"""SVG plots of a run: progress, search tree, and reference and winner below the device's ceilings.

Every candidate is one mark with the id `candidate-<number>`. Colours are Okabe and Ito's, which
colour-blind readers can distinguish; shapes repeat them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optimizer.search.records import Node
from optimizer.search.tree import Tree

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

BEST = "#000000"
# verdict -> colour, marker, label
STYLES: Mapping[str, tuple[str, str, str]] = {
    "correct": ("#009E73", "o", "correct"),
    "incorrect": ("#D55E00", "X", "wrong result"),
    "unsupported": ("#E69F00", "X", "unsupported input"),
    "crashed": ("#CC79A7", "v", "crashed"),
    "timed_out": ("#CC79A7", "<", "timed out"),
    "not_compiled": ("#E69F00", "s", "does not compile"),
    "rejected": ("#D55E00", "P", "rejected"),
    "not_run": ("#999999", "p", "not run"),
    "duplicate": ("#56B4E9", "d", "duplicate"),
    "unmeasured": ("#F0E442", "h", "correct, not measured"),
    "failed": ("#999999", "*", "infrastructure failed"),
    "reference": ("#0072B2", "D", "reference"),
}
SHARES = ("matmul_peak_pct", "copy_bandwidth_pct")


@dataclass
class Plots:
    """The plots of a run: `drawn` maps a name to its file, `left_out` to the reason."""

    drawn: dict[str, Path] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


def write_plots(tree: Tree, winner: int | None, folder: Path) -> Plots:
    """Draw progress.svg, tree.svg and, where the metrics exist, roofline.svg into `folder`."""
    plots = Plots()
    try:
        from matplotlib import rc_context
    except ImportError as problem:
        why = f"{problem.name or problem} is not installed (pip install 'kernlore[kernels]')"
        plots.left_out = dict.fromkeys(("progress", "tree", "roofline"), why)
        return plots
    if not len(tree):
        plots.left_out = dict.fromkeys(("progress", "tree", "roofline"), "nothing was measured")
        return plots
    folder.mkdir(parents=True, exist_ok=True)
    # Text stays text, and the same run gives the same file.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "kernlore", "font.size": 10}):
        plots.drawn["progress"] = _saved(_progress(tree), folder / "progress.svg")
        plots.drawn["tree"] = _saved(_tree(tree, winner), folder / "tree.svg")
        positions, why = _positions(tree, winner)
        if positions:
            plots.drawn["roofline"] = _saved(_roofline(positions), folder / "roofline.svg")
        if why:
            plots.left_out["roofline"] = why
    return plots


def _figure(width: float, height: float) -> tuple[Drawing, Axes]:
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as Drawing

    drawing = Drawing(figsize=(width, height), layout="constrained")
    FigureCanvasSVG(drawing)
    return drawing, drawing.add_subplot()


def _saved(drawing: Drawing, path: Path) -> Path:
    drawing.savefig(path, format="svg", metadata={"Date": None})
    return path


def _style(node: Node) -> tuple[str, str, str]:
    return STYLES["reference" if node.parent is None else node.verdict]


def _legend(axes: Axes, nodes: Sequence[Node], lines: Sequence[Any] = ()) -> None:
    """One entry for each verdict that occurs."""
    from matplotlib.lines import Line2D

    entries = dict.fromkeys(_style(node) for node in nodes)
    marks = [
        Line2D([], [], color=colour, marker=marker, linestyle="", label=label)
        for colour, marker, label in entries
    ]
    axes.legend(handles=[*marks, *lines], loc="upper left", bbox_to_anchor=(1.01, 1.0))


def _progress(tree: Tree) -> Drawing:
    from matplotlib.ticker import MaxNLocator

    drawing, axes = _figure(9, 4.5)
    nodes = tree.nodes[1:]
    for node in nodes:
        _candidate(axes, node)
    axes.axhline(1.0, color=STYLES["reference"][0], linewidth=1, linestyle="--")
    best: list[float] = []
    for node in nodes:
        best.append(max(best[-1] if best else 1.0, _value(node)))
    numbers = [node.number for node in nodes]
    lines = []
    if any(_value(node) for node in nodes):
        lines = axes.step(
            numbers, best, where="post", color=BEST, linewidth=1.5, label="best so far"
        )
    axes.set_xlabel("candidate")
    over = "the reference" if tree.baseline is None else "the baseline"
    axes.set_ylabel(f"speed-up over {over}\n(95 % interval)")
    axes.set_title("Speed-up of the candidates")
    axes.set_xlim(0.5, max(numbers, default=1) + 0.5)  # numbers of candidates stay whole
    bottom, top = axes.get_ylim()
    axes.set_ylim(min(bottom, 0.9) - 0.08 * (top - bottom), top)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.text(0.01, 0.01, "lowest row: no figure", transform=axes.transAxes, fontsize=8)
    _legend(axes, nodes, lines)
    return drawing


def _value(node: Node) -> float:
    """The speed-up that is plotted, or 0."""
    return node.speedup.value if node.correct and node.speedup is not None else 0.0


def _candidate(axes: Axes, node: Node) -> None:
    """A mark at the candidate's speed-up, or in the lowest row without one."""
    colour, marker, _ = _style(node)
    speedup = node.speedup if node.correct else None
    if speedup is None:
        spot = axes.plot(
            [node.number], [0.05], marker, color=colour, transform=axes.get_xaxis_transform()
        )
    else:
        axes.plot([node.number] * 2, [speedup.low, speedup.high], color=colour, linewidth=1.2)
        spot = axes.plot([node.number], [speedup.value], marker, color=colour)
    spot[0].set_gid(f"candidate-{node.number}")
    spot[0].set_zorder(3)


def _tree(tree: Tree, winner: int | None) -> Drawing:
    from matplotlib.ticker import MaxNLocator

    places = _places(tree)
    width = max(6.0, 0.35 * (1 + max(x for x, _ in places)) + 3)
    height = max(3.5, 0.9 * (1 + max(y for _, y in places)))
    drawing, axes = _figure(min(width, 40.0), min(height, 40.0))
    best = {node.number for node in tree.path_to(winner)} if winner is not None else set()
    for node in tree:
        if node.parent is None:
            continue
        on = node.number in best
        ends = [places[node.parent], places[node.number]]
        axes.plot(
            *zip(*ends, strict=True),
            color=BEST if on else "#BBBBBB",
            linewidth=3 if on else 1,
            gid=f"edge-{node.number}",
        )
    for node in tree:
        colour, marker, _ = _style(node)
        x, y = places[node.number]
        spot = axes.plot([x], [y], marker, color=colour, markersize=9, markeredgecolor="black")
        spot[0].set_gid("reference" if node.parent is None else f"candidate-{node.number}")
        spot[0].set_zorder(3)
        figure = f" {_value(node):.2f}x" if _value(node) else ""
        label = axes.annotate(f"{node.number}{figure}", (x, y), (9, -3), textcoords="offset points")
        label.set(
            fontsize=8, zorder=4, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5}
        )
    axes.invert_yaxis()
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xticks([])
    axes.set_ylabel("steps from the reference")
    axes.set_title("Search tree" + ("" if winner is None else f" (winner: node {winner})"))
    axes.margins(x=0.1, y=0.15)
    _legend(axes, tree.nodes)
    return drawing


def _places(tree: Tree) -> list[tuple[float, int]]:
    """Coordinates of the nodes: x in the middle of the children, y the depth."""
    depth = [0] * len(tree)
    for node in tree:
        if node.parent is not None:
            depth[node.number] = depth[node.parent] + 1
    place, waiting, leaves = [0.0] * len(tree), [0], 0
    while waiting:
        number = waiting.pop()
        children = tree.children(number)
        if not children:
            place[number], leaves = float(leaves), leaves + 1
        waiting += [child.number for child in reversed(children)]
    for node in reversed(tree.nodes):
        children = tree.children(node.number)
        if children:
            place[node.number] = sum(place[c.number] for c in children) / len(children)
    return list(zip(place, depth, strict=True))


def _positions(tree: Tree, winner: int | None) -> tuple[dict[str, tuple[Node, float, float]], str]:
    """Name -> node and its shares of the matmul peak and of the copy bandwidth, in percent; also
    the reasons for missing positions."""
    wanted = {"reference": tree.root}
    if winner is not None:
        wanted["winner"] = tree[winner]
    positions, lacking = {}, []
    for name, node in wanted.items():
        shares = shares_of(node)
        missing = [metric for metric in SHARES if metric not in shares]
        if missing:
            lacking.append(f"{name} has no {' and no '.join(missing)}")
        else:
            positions[name] = (node, shares[SHARES[0]], shares[SHARES[1]])
    return positions, "; ".join(lacking)


def shares_of(node: Node) -> dict[str, float]:
    """Shares in the evaluation's metrics, else in the evidence of its verdict."""
    if node.evaluation is None:
        return {}
    known: dict[str, Any] = {}
    for signal in node.evaluation.verdict.signals:
        known |= {row["name"]: row["value"] for row in signal.evidence if "name" in row}
    known |= node.evaluation.metrics
    return {n: float(known[n]) for n in SHARES if isinstance(known.get(n), int | float)}


def _roofline(positions: Mapping[str, tuple[Node, float, float]]) -> Drawing:
    drawing, axes = _figure(6, 5)
    for name, (node, compute, memory) in positions.items():
        colour, marker, _ = STYLES["reference" if name == "reference" else "correct"]
        spot = axes.plot([compute], [memory], marker, color=colour, markersize=10, label=name)
        spot[0].set_gid(f"position-{name}")
        axes.annotate(
            f"{name} (node {node.number})", (compute, memory), (8, 6), textcoords="offset points"
        )
    axes.axhline(100, color="#555555", linestyle="--", linewidth=1)
    axes.axvline(100, color="#555555", linestyle="--", linewidth=1)
    top = max(105.0, *(1.1 * max(c, m) for _, c, m in positions.values()))
    axes.set_xlim(0, top)
    axes.set_ylim(0, top)
    axes.set_xlabel("share of the measured matmul peak, %")
    axes.set_ylabel("share of the measured copy bandwidth, %")
    axes.set_title("Position below the ceilings (dashed)")
    axes.legend()
    return drawing
