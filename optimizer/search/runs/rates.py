"""The rates of a device that is elsewhere: they come back with the results of a session, and models
are shown them in the next rounds of its runs.
"""

from __future__ import annotations

import json
from pathlib import Path

from kb.data_dir import private_file, private_folder
from optimizer.evaluation.collectors.ceilings import from_file
from optimizer.search.portable.launch import CEILINGS
from optimizer.search.runs.machine import rates_of
from optimizer.search.synthesizers.base import RatesView
from retrieval.knowledge_base import KnowledgeBase


def keep_rates(base: KnowledgeBase, run_id: str, results: Path) -> None:
    """Keep those of a results folder with the run; those of an earlier session give way."""
    ceilings = from_file(results / CEILINGS)
    if ceilings is None:
        return
    kept = _file(base, run_id)
    private_folder(kept.parent)
    private_file(kept)
    kept.write_text(json.dumps(ceilings.as_json()), encoding="utf-8")


def kept_rates(base: KnowledgeBase, run_id: str) -> RatesView | None:
    """Those that came with the run's last results; None before, and where none were measured."""
    return rates_of(from_file(_file(base, run_id)))


def _file(base: KnowledgeBase, run_id: str) -> Path:
    return base.settings.data_dir.absolute() / "runs" / run_id / CEILINGS
