"""Scores of all documents for weighted query terms, from posting lists."""

import torch
import torch.nn as nn

queries = 32
terms = 16
vocabulary = 4096
postings = 524_288
documents = 16_384


class Model(nn.Module):
    """posting_offsets says where each term's list of (document, weight) begins and ends; a document
    scores the sum of query weight times posting weight over the terms that it holds."""

    def __init__(self, vocabulary: int, postings: int, documents: int) -> None:
        super().__init__()
        self.documents = documents
        cuts = torch.randint(0, postings + 1, (vocabulary - 1,)).sort().values
        ends = torch.cat([torch.tensor([0]), cuts, torch.tensor([postings])])
        self.posting_offsets: torch.Tensor
        self.posting_documents: torch.Tensor
        self.register_buffer("posting_offsets", ends)
        self.register_buffer("posting_documents", torch.randint(0, documents, (postings,)))
        self.posting_weights = nn.Parameter(torch.rand(postings) + 0.1)

    def forward(self, query_terms: torch.Tensor, query_weights: torch.Tensor) -> torch.Tensor:
        queries, terms = query_terms.shape
        starts = self.posting_offsets[query_terms.flatten()]
        lengths = self.posting_offsets[query_terms.flatten() + 1] - starts
        asked = torch.arange(queries * terms, device=starts.device)
        owner = torch.repeat_interleave(asked, lengths)
        before = (lengths.cumsum(0) - lengths)[owner]
        posting = starts[owner] + torch.arange(owner.numel(), device=starts.device) - before
        score = self.posting_weights[posting] * query_weights.flatten()[owner]
        place = owner // terms * self.documents + self.posting_documents[posting]
        found = torch.zeros(queries * self.documents, dtype=score.dtype, device=score.device)
        return found.index_add(0, place, score).view(queries, self.documents)


def get_inputs() -> list[torch.Tensor]:
    terms_asked = torch.randint(0, vocabulary, (queries, terms))
    return [terms_asked, torch.rand(queries, terms) + 0.1]


def get_init_inputs() -> list[int]:
    return [vocabulary, postings, documents]
