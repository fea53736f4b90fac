"""What may be trained on, and why the rest may not. Decides from the sample alone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from optimizer.search.synthesizers.llm.settings import Redaction
from skills.training.samples import Sample

_SPDX = re.compile(
    r"SPDX-License-Identifier:[ \t]*([A-Za-z0-9][A-Za-z0-9 .()+-]*?)[ \t*/>-]*$", re.M
)


@dataclass(frozen=True)
class Kept:
    """left_out: how many samples, by reason; each counts under its first one."""

    samples: tuple[Sample, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)


def trainable(samples: Sequence[Sample]) -> Kept:
    """In their order. Of several with the same bundle for the same problem and hardware the first
    is kept."""
    redaction = Redaction()
    left_out = Counter[str]()
    seen: set[tuple[str, str, str]] = set()
    kept = []
    for sample in samples:
        bundle = (sample.problem_sha256, sample.hardware, sample.bundle_sha256)
        reason = refusal(sample, redaction)
        if not reason and bundle in seen:
            reason = "the same bundle as another"
        if reason:
            left_out[reason] += 1
            continue
        seen.add(bundle)
        kept.append(sample)
    return Kept(tuple(kept), left_out)


def refusal(sample: Sample, redaction: Redaction) -> str:
    """Why it may not be trained on; empty where it may."""
    if sample.reward.validity == "rejected":
        return "rejected for integrity"
    if sample.reward.flags:
        return "held for a person by an integrity flag"
    if sample.reward.value is None:
        return "without a known reward"
    if sample.licences.problem is None:
        return "of a problem without a known licence"
    if sample.licences.source is None:
        return "of a source without a known licence"
    if holds_secret(sample, redaction):
        return "with what looks like a secret"
    return ""


def holds_secret(sample: Sample, redaction: Redaction) -> bool:
    """By the configured secrets, and by the forms of keys."""
    texts = (sample.prompt.system, sample.prompt.user, sample.completion, str(sample.state))
    return any(redaction.error(text) != text for text in texts)


def stated_licence(text: str) -> str | None:
    """What an SPDX line of a source says."""
    found = _SPDX.search(text)
    return found[1].strip() if found is not None else None
