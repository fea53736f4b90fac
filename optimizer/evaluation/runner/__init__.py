"""The process that runs one candidate (or the reference) and dies with it.

A package of its own: standard library, torch and, for Triton kernels, triton; nothing of Kernlore's
other packages. It gets its requests over a socket and its arrays through shared memory, and hands
back outputs and times. It compares nothing: expected outputs are never in this process.
"""
