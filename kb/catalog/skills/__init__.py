"""Skills in the catalog: rows with scopes, history, evidence, relations and uses.

Knows neither the SKILL.md format (`skills`) nor the ranking of skills.
"""
