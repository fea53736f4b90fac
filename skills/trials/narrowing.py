"""Less is claimed of a skill whose trials disagree: where it certainly harms is told from where it
certainly helps by one size.

The boundary is drawn from those trials, so they prove nothing of what is left: whoever narrows
tries it again on other cases.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from sqlalchemy import Connection

from kb.catalog import skills as store
from kb.catalog.skills import SkillRow
from kb.scope import ALL_ACCESS
from skills.observation import Part, outside, store_narrowed, trials_of, without

Sizes = Mapping[str, float]


def losing_part(harmed: Sequence[Sizes], helped: Sequence[Sizes]) -> Part | None:
    """The side of a cut that has all cases in which it harmed and none in which it helped, by the
    quantity that tells them furthest apart. The cut is halfway between the two nearest, on the log
    scale. None where no quantity does, or there is nothing on one side. sizes: of each case."""
    if not harmed or not helped:
        return None
    parts = []
    for key in sorted(set.intersection(*(set(sizes) for sizes in (*harmed, *helped)))):
        bad, good = ([sizes[key] for sizes in side] for side in (harmed, helped))
        if min(*bad, *good) <= 0:
            continue
        if max(bad) < min(good):
            cut = float(math.ceil(math.sqrt(max(bad) * min(good))))
            parts.append((min(good) / max(bad), Part(key, below=cut)))
        elif max(good) < min(bad):
            cut = float(math.floor(math.sqrt(max(good) * min(bad))))
            parts.append((min(bad) / max(good), Part(key, at_least=cut)))
    return max(parts, key=lambda entry: entry[0], default=(0.0, None))[1]


def narrow(
    connection: Connection,
    skill: SkillRow,
    part: Part,
    *,
    actor: str,
    reason: str,
    access_scope: str = ALL_ACCESS,
) -> SkillRow:
    """The skill without the part. Its text and evidence stay, and the uses in what is kept."""
    kept = outside(trials_of(connection, skill, access_scope), part)
    scopes, predicate = without(skill.scopes, skill.predicate, part, kept)
    narrowed = replace(skill, scopes=scopes, predicate=predicate)
    details = {"parts": [asdict(part)]}
    signed = {"actor": actor, "reason": reason, "access_scope": access_scope}
    store_narrowed(connection, narrowed, kept, details, **signed)
    return store.get(connection, skill.name, access_scope)
