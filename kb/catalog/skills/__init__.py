"""Skills in the catalog: rows with their scopes, an append-only history, their evidence, their
relations and their uses.

Every change of a row or of its state writes an event with an actor and a reason in the same
transaction. Knows neither the SKILL.md format (`skills`) nor how skills are ranked:
`candidate_skills` only leaves out what cannot apply.
"""

from kb.catalog.skills.evidence import (
    NOT_MEASURED,
    add_evidence,
    evidence_for,
    evidence_line,
    evidence_of,
)
from kb.catalog.skills.links import link, links_of
from kb.catalog.skills.rates import Bounds, wilson
from kb.catalog.skills.reading import (
    about,
    candidate_skills,
    events,
    find,
    get,
    heads,
    heads_of,
    listed,
    names,
    search,
)
from kb.catalog.skills.rows import (
    EVIDENCE_KINDS,
    LINK_KINDS,
    ROLES,
    STATES,
    TIERS,
    TRANSITIONS,
    EvidenceKind,
    EvidenceRow,
    Lift,
    Link,
    LinkKind,
    NewUse,
    Outcome,
    Role,
    SkillDraft,
    SkillEvent,
    SkillHead,
    SkillRow,
    SkillScopes,
    State,
    Stored,
    Tier,
    UseRow,
    structured_key,
)
from kb.catalog.skills.support import FAILURES, TRIALS, measured, tested
from kb.catalog.skills.toolchains import (
    note_toolchain,
    present_toolchains,
    toolchain_name,
)
from kb.catalog.skills.uses import lift_of, nth_last_retrieval, record_uses, uses_of
from kb.catalog.skills.writing import narrow, put, set_state

__all__ = [
    "EVIDENCE_KINDS",
    "FAILURES",
    "LINK_KINDS",
    "NOT_MEASURED",
    "ROLES",
    "STATES",
    "TIERS",
    "TRANSITIONS",
    "TRIALS",
    "Bounds",
    "EvidenceKind",
    "EvidenceRow",
    "Lift",
    "Link",
    "LinkKind",
    "NewUse",
    "Outcome",
    "Role",
    "SkillDraft",
    "SkillEvent",
    "SkillHead",
    "SkillRow",
    "SkillScopes",
    "State",
    "Stored",
    "Tier",
    "UseRow",
    "about",
    "add_evidence",
    "candidate_skills",
    "events",
    "evidence_for",
    "evidence_line",
    "evidence_of",
    "find",
    "get",
    "heads",
    "heads_of",
    "lift_of",
    "link",
    "links_of",
    "listed",
    "measured",
    "names",
    "narrow",
    "note_toolchain",
    "nth_last_retrieval",
    "present_toolchains",
    "put",
    "record_uses",
    "search",
    "set_state",
    "structured_key",
    "tested",
    "toolchain_name",
    "uses_of",
    "wilson",
]
