"""Findings in the sections of a document: tags, scopes, facts, moves."""
