"""The skill library: read, approve and retire, out as a zip and in as a candidate.

Measuring a skill takes minutes of the whole machine and stays with the shell (`kernlore skills
verify`); nothing that comes in here is run.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from api.http.bodies import (
    is_json,
    json_body,
    load_json,
    media_type,
    read_json_body,
    too_large,
    validated,
)
from api.http.dependencies import Access, Parts
from api.http.multipart import read_upload
from api.services import Services
from kb.errors import InvalidRequest
from kb.plain import plain
from skills.format.folders import MAX_BYTES, packed, placed, unpacked
from skills.lifecycle import Wanted, change_state

router = APIRouter(tags=["skills"])
ACTOR = "http"
Line = Annotated[str, Field(min_length=1, max_length=2_000, pattern=r"\S")]


class SkillPatch(BaseModel):
    """What is to become of a skill, who says so, and why."""

    model_config = ConfigDict(extra="forbid")

    state: Wanted = Field(description="`restored` brings back what is retired or quarantined.")
    actor: Annotated[str, Field(min_length=1, max_length=200, pattern=r"\S")]
    reason: Line
    force: bool = Field(False, description="Approve although no trial bears it out.")


class SkillBody(BaseModel):
    """A skill's folder as texts."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-z0-9-]+$")]
    files: dict[Annotated[str, Field(min_length=1, max_length=200)], str] = Field(
        min_length=1, description="Relative path to text; SKILL.md among them."
    )
    actor: Annotated[str, Field(min_length=1, max_length=200, pattern=r"\S")] = ACTOR


def _body(model: type[BaseModel], **others: Any) -> dict[str, Any]:
    content = {"application/json": {"schema": model.model_json_schema()}, **others}
    return {"requestBody": {"required": True, "content": content}}


_ZIP = {
    "schema": {
        "type": "object",
        "required": ["file"],
        "properties": {"file": {"type": "string", "format": "binary"}},
    }
}


@router.get("/skills", summary="Every skill, or those that fit")
def list_skills(
    parts: Parts,
    access: Access,
    state: Annotated[str | None, Query(description="Like active; several with commas.")] = None,
    tier: Annotated[str | None, Query(description="curated or learned.")] = None,
    hardware: Annotated[str | None, Query(description="That hold for it, and so of any.")] = None,
    signal: str | None = None,
    q: Annotated[str | None, Query(description="Words of name, text, operators, signals.")] = None,
) -> dict[str, Any]:
    states = _listed(state)
    found = parts.skills.list(
        states=states, tier=tier, hardware=hardware, signal=signal, access_scope=access
    )
    if q is not None:
        fitting = {skill.name: skill for skill in found}
        by_words = parts.skills.search(q, states=states, access_scope=access)
        found = [fitting[skill.name] for skill in by_words if skill.name in fitting]
    return {"skills": plain(found)}


def _listed(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


@router.get("/skills/{name}", summary="One skill")
def show_skill(name: str, parts: Parts, access: Access) -> JSONResponse:
    return JSONResponse(plain(parts.skills.show(name, access_scope=access)))


@router.patch(
    "/skills/{name}",
    summary="Approve, quarantine, retire or restore",
    openapi_extra=_body(SkillPatch),
)
def patch_skill(
    name: str,
    parts: Parts,
    access: Access,
    body: Annotated[SkillPatch, Depends(json_body(SkillPatch))],
) -> dict[str, Any]:
    """The event that it made. A learned skill is approved once trials bear out its text, or by
    `force`, which its history keeps."""
    event = change_state(
        parts,
        name,
        body.state,
        actor=body.actor,
        reason=body.reason,
        force=body.force,
        access_scope=access,
    )
    return {"name": name, "state": event.to_state, "event": plain(event)}


@router.get("/skills/{name}/history", summary="Everything that became of it, oldest first")
def history(name: str, parts: Parts, access: Access) -> dict[str, Any]:
    return {"name": name, "events": plain(parts.skills.show(name, access_scope=access).events)}


@router.get(
    "/skills/{name}/export",
    summary="Its folder as a zip",
    response_class=Response,
    responses={200: {"content": {"application/zip": {}}}},
)
def export(name: str, parts: Parts, access: Access) -> Response:
    """In the open SKILL.md format, without scripts."""
    with tempfile.TemporaryDirectory(prefix="kernlore-export-") as folder:
        (written,) = parts.skills.export(Path(folder), [name], access_scope=access)
        data = packed(written)
    told = {"content-disposition": f'attachment; filename="{written.name}.zip"'}
    return Response(data, media_type="application/zip", headers=told)


@dataclass(frozen=True)
class Sent:
    """A folder: zipped, or as texts."""

    zipped: bytes = b""
    texts: SkillBody | None = None


async def _incoming(request: Request) -> Sent:
    if is_json(media_type(request)):
        return Sent(texts=validated(SkillBody, load_json(await read_json_body(request))))
    form = await read_upload(request)
    try:
        if len(form.files) != 1 or form.fields:
            raise InvalidRequest(
                "a skill comes alone", hint="Send one zip in the field `file`, and no other field."
            )
        (sent,) = form.files
        data = sent.file.read(MAX_BYTES + 1)
        if sent.oversized or len(data) > MAX_BYTES:
            raise too_large("zip", MAX_BYTES, "nothing: a skill is one page")
        return Sent(data)
    finally:
        for file in form.files:
            file.close()


@router.post(
    "/skills",
    summary="Take a skill in as a candidate",
    status_code=201,
    responses={200: {"description": "It is here already, word for word."}},
    openapi_extra=_body(SkillBody, **{"multipart/form-data": _ZIP}),
)
def add_skill(
    parts: Parts, access: Access, sent: Annotated[Sent, Depends(_incoming)]
) -> JSONResponse:
    """Whatever it claims of its state and its evidence is left out, and so are its scripts."""
    if sent.texts is None:
        with unpacked(sent.zipped) as folder:
            return _imported(parts, folder, ACTOR, access)
    with placed(sent.texts.name, sent.texts.files) as folder:
        return _imported(parts, folder, sent.texts.actor, access)


def _imported(parts: Services, folder: Path, actor: str, access: str) -> JSONResponse:
    found = parts.skills.import_folder(folder, actor=actor, access_scope=access)
    return JSONResponse(plain(found), 200 if found.outcome == "unchanged" else 201)
