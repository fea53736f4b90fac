"""One run of the service, in the process that `api.run_worker` starts."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from api.cli.backends import read_settings, send_logs_to_stderr
from api.cli.backends.local import LocalTarget
from api.cli.elsewhere import places_on
from api.cli.progress import plain_lines
from api.services import Services
from kb import telemetry
from kb.catalog.runs import RunMail
from kb.errors import KernloreError
from optimizer.search.goal import Goal, goal_from_json
from optimizer.search.loop import Listener
from optimizer.search.runs.optimize import optimize
from optimizer.search.runs.places import places_for
from optimizer.search.runs.proposers import builtin
from optimizer.search.runs.run_store import run_store, store_failed
from optimizer.search.synthesizers.base import Synthesizer
from optimizer.search.synthesizers.external import ExternalSynthesizer
from optimizer.search.synthesizers.llm.prompt import brief
from optimizer.search.synthesizers.llm.settings import ModelOptions
from optimizer.search.synthesizers.llm.templates import Fence
from skills.lifecycle import prepare_library


def main(text: str) -> int:
    """Carry out one run, described as JSON; the exit code. SIGTERM ends it with what it started."""
    signal.signal(signal.SIGTERM, _leave)
    send_logs_to_stderr("error")
    telemetry.start()
    description = json.loads(text)
    goal = goal_from_json(description["goal"])
    local = LocalTarget(read_settings(None))
    services = local.services
    carry_out = _on_cluster if "ray" in description else _here
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


def _here(
    services: Services, description: Mapping[str, Any], goal: Goal, listener: Listener
) -> None:
    """A run whose candidates this machine measures. Raises KernloreError."""
    hardware, run_id = description["hardware"], description["run"]
    prepare_library(services, hardware, goal.language, listener.log)
    proposers: list[Synthesizer] = []
    if "external" in description["proposers"]:
        mail = RunMail(services.catalog, run_id)
        store = run_store(services)
        service = os.getppid()  # nobody can send it a candidate once that is gone
        fence = Fence()  # one for the run: later briefings rely on what the first said of it
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


def _on_cluster(
    services: Services, description: Mapping[str, Any], goal: Goal, listener: Listener
) -> None:
    """A run whose candidates the nodes of a cluster measure, by what a single machine proposes.
    Raises KernloreError."""
    hardware = description["hardware"]
    with places_on(services, description["ray"], hardware, goal.language) as elsewhere:
        assert elsewhere is not None
        signal.signal(signal.SIGTERM, _leave)
        places = elsewhere.places
        prepare_library(services, hardware, goal.language, listener.log, places)
        optimize(
            services,
            Path(description["problem"]),
            goal,
            hardware,
            listener,
            models=ModelOptions(**description["models"]),
            cluster=elsewhere,
            run_id=description["run"],
        )


def _leave(number: int, frame: FrameType | None) -> None:
    """Through every `finally`, so that runners end and the device is free."""
    raise SystemExit(128 + number)
