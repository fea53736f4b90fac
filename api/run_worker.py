"""`python -m api.run_worker JSON`: one run of the service, in its own process.

Imports are in the functions that use them: `main` first makes the collector run rarely, as imports
make most of the objects of this process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from kb.memory import collect_rarely
from kb.plain import from_json

if TYPE_CHECKING:
    from api.services import Services
    from optimizer.search.goal import Goal
    from optimizer.search.loop import Listener
    from optimizer.search.synthesizers.base import Synthesizer


def main(text: str) -> int:
    """Carry out one run, described as JSON; the exit code. SIGTERM ends it with its processes."""
    collect_rarely()
    from api.cli.search import plain_lines
    from api.cli.target import CommandTarget, read_settings, send_logs_to_stderr
    from kb import telemetry
    from kb.errors import KernloreError
    from optimizer.search.goal import Goal
    from optimizer.search.runs.run_store import store_failed

    signal.signal(signal.SIGTERM, _exit)
    send_logs_to_stderr("error")
    telemetry.start()
    description = json.loads(text)
    goal = from_json(Goal, description["goal"])
    local = CommandTarget(read_settings())
    services = local.services
    carry_out = _run_of_command if "ray" in description else _run_here
    try:
        carry_out(services, description, goal, plain_lines(goal))
    except KernloreError as error:
        reason = f"{error.message}. {error.hint}"
        hardware = description["hardware"]
        store_failed(
            services, description["run"], Path(description["problem"]), goal, hardware, reason
        )
        print(reason, file=sys.stderr)
        return 1
    finally:
        local.close()
    return 0


def _run_here(
    services: Services, description: Mapping[str, Any], goal: Goal, listener: Listener
) -> None:
    """A run whose candidates this machine measures. Raises KernloreError."""
    from kb.catalog.runs import RunMail
    from optimizer.search.runs.optimize import builtin, optimize
    from optimizer.search.runs.places import places_for
    from optimizer.search.runs.run_store import run_store
    from optimizer.search.synthesizers.external import ExternalSynthesizer
    from optimizer.search.synthesizers.llm.prompt import brief
    from optimizer.search.synthesizers.llm.templates import Fence
    from skills.lifecycle import prepare_library

    hardware, run_id = description["hardware"], description["run"]
    prepare_library(services, hardware, goal.language, listener.log)
    proposers: list[Synthesizer] = []
    if "external" in description["proposers"]:
        mail = RunMail(services.catalog, run_id)
        store = run_store(services)
        service = os.getppid()  # once it is gone, no candidate can be sent
        fence = Fence()  # one for the run: later briefings refer to the first
        proposers.append(
            ExternalSynthesizer(
                mail,
                cancelled=lambda: store.cancelled(run_id) or os.getppid() != service,
                context_tokens=description["context_tokens"],
                brief=lambda c: asdict(brief(c, fence, budget=c.max_tokens)),
            )
        )
    if "builtin" in description["proposers"]:
        places = places_for(services, hardware, goal.language)
        proposers += builtin(services, goal, places)
    optimize(
        services,
        Path(description["problem"]),
        goal,
        hardware,
        listener,
        proposers=proposers,
        run_id=run_id,
    )


def _run_of_command(
    services: Services, description: Mapping[str, Any], goal: Goal, listener: Listener
) -> None:
    """A run of `kernlore optimize` with several problems, whose candidates the nodes of a cluster
    measure, or this machine where `ray` is None. Raises KernloreError."""
    from api.cli.search import places_on
    from optimizer.search.runs.optimize import optimize
    from optimizer.search.synthesizers.llm.settings import ModelOptions
    from skills.lifecycle import prepare_library

    hardware = description["hardware"]
    with places_on(services, description["ray"], hardware, goal.language) as nodes:
        signal.signal(signal.SIGTERM, _exit)  # connecting replaced the handler
        places = None if nodes is None else nodes.places
        prepare_library(services, hardware, goal.language, listener.log, places)
        optimize(
            services,
            Path(description["problem"]),
            goal,
            hardware,
            listener,
            models=ModelOptions(**description["models"]),
            cluster=nodes,
            run_id=description["run"],
        )


def _exit(number: int, frame: FrameType | None) -> None:
    """Unwind every `finally`, so that runners end and the device is free."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
