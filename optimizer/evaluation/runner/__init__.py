"""The process that runs one candidate (or the reference) and ends with it.

A self-contained package: standard library, torch and, for Triton kernels, triton; it imports
nothing else of Kernlore. Requests come over a socket, arrays through shared memory; outputs and
times go back. It compares nothing: expected outputs are never in this process.
"""
