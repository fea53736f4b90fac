"""From a trajectory to candidate skills. Only the sentences may be a model's; every other step is
deterministic, and a distillation is stored so that it can be judged again.

    distil          orchestrates: reads the trajectory, keeps the record, stores what is learned
    storing         the snapshot of the library before, the deltas after, in one transaction
    pipeline        gate -> contrast -> draft -> lint -> normalise -> match, step by step
    gate            which changes may teach: correct, certain, honest, new
    contrast        what changed, as structure
    evidence        its measurements as rows, and figures of a text as references to them
    draft, wording  the skill that follows, and its sentences without a model
    drafter, sentences  what a model may write of it, and the checks of its answer
    match           whether the library says it already, or the opposite
    changes         the deltas: a new skill, more evidence, a contradiction
    lifting         kernels and tuned recipes that become recipes
    kernel_text     a kernel that cannot be a recipe, as text with its key lines
    mended_runs     looks over all stored runs for errors that were mended, and stores the lessons
    mending         failed kernels with what followed, and which errors are lessons
    debugging       the text of such a lesson: when, cause, cure, evidence
    texts           when two kernels or texts are the same, and what was copied
    records, distillation  what is handed on and stored
"""
