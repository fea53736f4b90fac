import torch
import triton
import triton.language as tl


@triton.jit
def score_query(
    terms_ptr,
    query_weights_ptr,
    weights_ptr,
    offsets_ptr,
    documents_ptr,
    out_ptr,
    terms,
    documents,
    TERMS: tl.constexpr,
    BLOCK: tl.constexpr,
    ZEROS: tl.constexpr,
):
    query = tl.program_id(0).to(tl.int64)
    out_ptr += query * documents
    for start in range(0, documents, ZEROS):
        place = start + tl.arange(0, ZEROS)
        tl.store(out_ptr + place, tl.zeros((ZEROS,), dtype=tl.float32), mask=place < documents)
    # Every zero is written before the first addition to it: both are of this program.
    tl.debug_barrier()
    for start in range(0, terms, TERMS):
        term = start + tl.arange(0, TERMS)
        asked = term < terms
        number = tl.load(terms_ptr + query * terms + term, mask=asked, other=0)
        factor = tl.load(query_weights_ptr + query * terms + term, mask=asked, other=0.0)
        begin = tl.load(offsets_ptr + number, mask=asked, other=0)
        length = tl.load(offsets_ptr + number + 1, mask=asked, other=0) - begin
        longest = tl.max(length)
        done = longest * 0
        while done < longest:
            step = done + tl.arange(0, BLOCK)
            inside = step[None, :] < length[:, None]
            posting = begin[:, None] + step[None, :]
            document = tl.load(documents_ptr + posting, mask=inside, other=0)
            score = tl.load(weights_ptr + posting, mask=inside, other=0.0).to(tl.float32)
            score *= factor[:, None].to(tl.float32)
            tl.atomic_add(out_ptr + document, score, mask=inside, sem="relaxed")
            done += BLOCK


def run(query_terms, query_weights, posting_weights, posting_offsets, posting_documents):
    queries, terms = query_terms.shape
    out = torch.empty((queries, @{documents}), device=query_terms.device, dtype=torch.float32)
    score_query[(queries,)](
        query_terms,
        query_weights,
        posting_weights,
        posting_offsets,
        posting_documents,
        out,
        terms,
        @{documents},
        TERMS=@{terms},
        BLOCK=@{block},
        ZEROS=@{zeros},
        num_warps=@{warps},
    )
    return out.to(query_weights.dtype)
