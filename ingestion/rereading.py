"""The manuals of a chip, read again where they would now be read as something else."""

from __future__ import annotations

from ingestion.uploads import Submitted, Upload, Uploads
from kb.blobs import Blobs
from kb.catalog.knowledge.documents import Documents
from kb.scope import ALL_ACCESS, AccessScope


def read_again(
    uploads: Uploads,
    documents: Documents,
    blobs: Blobs,
    hardware: str,
    access_scope: AccessScope = ALL_ACCESS,
) -> list[Submitted]:
    """Queue the uploaded documents about exactly this hardware whose reading depends on what is
    known of it: names and kernels are read in the languages of its toolchains. Nothing is queued
    for a document that would be read as it was.
    """
    queued = []
    for document in documents.find(hardware=hardware, access_scope=access_scope):
        if document.origin == "builtin":  # read again with each start of the service
            continue
        newest = documents.versions(document.id, access_scope=access_scope)[0]
        submitted = uploads.submit(
            Upload(
                name=newest.file_name,
                data=blobs.get(newest.blob_key),
                category=document.category,
                hardware=document.hardware,
                languages=document.languages,
                title=document.title,
                source_key=document.source_key,
                origin=document.origin,
                access_scope=access_scope,
            )
        )
        if submitted.job_id is not None:
            queued.append(submitted)
    return queued
