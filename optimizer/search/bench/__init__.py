"""Benches measure candidates: on this machine, through a chip's own commands, on a cluster.

They import torch. The core of the search knows them by a protocol.
"""
