"""The tools of coding agents, and the operation whose role each needs. Needs no SDK."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from api.operations import Operation
from api.operations.documents import list_passages, upload
from api.operations.evaluations import evaluate_candidate
from api.operations.hardware import (
    decide_facts,
    list_facts,
    list_symbols,
    register_hardware,
    show_coverage,
)
from api.operations.knowledge import list_signals
from api.operations.retrieve import report_outcome, retrieve
from api.operations.runs import cancel_run, list_runs, propose_candidate, show_context, start_run
from api.operations.trajectories import submit_trajectory

TOOLS: Mapping[str, Operation[Any, Any]] = {
    "retrieve_context": retrieve,
    "search_manual": retrieve,
    "get_section": list_passages,
    "lookup_symbol": list_symbols,
    "list_signals_and_hardware": list_signals,
    "report_outcome": report_outcome,
    "evaluate_candidate": evaluate_candidate,
    "next_candidate_context": show_context,
    "submit_candidate": propose_candidate,
    "start_run": start_run,
    "list_runs": list_runs,
    "cancel_run": cancel_run,
    "submit_trajectory": submit_trajectory,
    "register_hardware": register_hardware,
    "upload_document": upload,
    "list_facts": list_facts,
    "decide_facts": decide_facts,
    "show_coverage": show_coverage,
}
