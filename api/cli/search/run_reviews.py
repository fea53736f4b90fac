"""`kernlore runs flagged|review`: candidates that wait for a person, and the person's answer."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from api.cli.backends import actor as login
from api.cli.backends import opened
from api.cli.options import AsJson, DataDir
from api.cli.output import show, table
from kb.errors import InvalidRequest

app = typer.Typer()
RunId = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="An id of `kernlore runs list`, or of `kernlore trajectories list`."
    ),
]


@app.command("flagged")
def flagged(run: RunId, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Candidates too good to be believed unseen, and what a person answered."""
    with opened(data_dir) as local:
        from skills.trajectories.reviews import flagged_nodes

        found = [one.as_json() for one in flagged_nodes(local.services, run)]
    show(found, as_json, _listed)


@app.command("review")
def review(
    run: RunId,
    node: Annotated[
        int, typer.Argument(metavar="NODE", help="Its number in `kernlore runs flagged RUN`.")
    ],
    reason: Annotated[str, typer.Option(help="What you looked at; it is kept.")],
    accept: Annotated[
        bool, typer.Option("--accept", help="It does the whole work: the flags hold it no longer.")
    ] = False,
    refuse: Annotated[
        bool, typer.Option("--refuse", help="It does not: it counts as rejected.")
    ] = False,
    actor: Annotated[str | None, typer.Option(help="Who says so; default: the login name.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Answer the flags of a candidate; the newest answer counts, and all are kept."""
    if accept == refuse:
        raise InvalidRequest(
            "a review accepts or refuses", hint="Give one of --accept and --refuse."
        )
    decision = "accepted" if accept else "refused"
    with opened(data_dir) as local:
        from skills.trajectories.reviews import review_node

        answered = review_node(
            local.services, run, node, decision, login() if actor is None else actor, reason
        )
    show(answered.as_json(), as_json, lambda one: _listed([one]))


def _listed(rows: Any) -> str:
    if not rows:
        return "nothing waits for a person"
    cells = [
        [row["node"], _figure(row["speedup"]), row["told"], "; ".join(row["flags"])] for row in rows
    ]
    return table(("node", "speed-up", "answer", "flagged"), cells)


def _figure(speedup: Any) -> str | None:
    if speedup is None:
        return None
    return f"{speedup['value']:.2f} [{speedup['low']:.2f}, {speedup['high']:.2f}]"
