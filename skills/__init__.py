"""Learning: what searches measured becomes skills, and skills are kept only while they help.

    format          a skill's folder: SKILL.md read, checked and written, archives, unsafe texts
    library         data: the skills that ship
    skill_library   the skills of the catalog: shipped, imported, exported, shown
    lifecycle       their states, changed by people and by new toolchains
    uses            what the outcomes of their uses say about them (statistics)
    observation     that applied: narrowed or retired
    trajectories    runs and external trajectories: received, evaluated again, read, reviewed
    trials          skills verified by leaving them out, on cases that they do not come from
    curator         a trajectory becomes candidate skills
    training        trajectories as training data

Imports point upwards in this list, except that `trials` and `curator` know nothing of `training`,
nor it of them. All of it may use the optimizer, which knows nothing of it.
"""
