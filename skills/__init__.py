"""Learning: measured searches become skills, and skills stay in use only while they help.

    format          a skill's folder: SKILL.md read, checked, written, packed; the linter
    library         data: the shipped skills
    importing       files on their way into the catalog; shipped skills
    skill_library   the skills of the catalog: listed, shown, imported, revised, exported
    lifecycle       their states: by people, toolchains and the outcomes of uses
    uses            statistics of uses
    trajectories    searches: received, evaluated again, read, reviewed by people
    trials          skills verified by leaving them out
    curator         searches become candidate skills
    training        searches as training data

Imports point upwards in this list, except that `trials` and `curator` do not import `training`, nor
it them. All of it may import the optimizer, which imports none of it.
"""
