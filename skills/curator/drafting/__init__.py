"""A skill's text from a change, without a model or with the sentences of one."""
