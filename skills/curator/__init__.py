"""From what happened in a run to a skill that is believed: gate, contrast, draft, normalise, match,
verify, publish, observe, retire. Only `draft` may ask a model.
"""
