"""From measured changes to candidate skills: gate -> contrast -> draft -> lint -> normalise ->
match (`pipeline`), stored by `distil`. `debugging_skills` learns from mended errors, `lifting`
makes recipes of kernels. A model may write the sentences of a draft (`drafter`) and nothing else;
every other step is deterministic, and a distillation is stored so that it can be judged again.
"""
