"""Readers of profiler output: pure functions from text to metrics by the profilers' names.

    profile       the typed result, and functions shared by the readers
    tables        rows of names with times or shares, of any tool
    program       what such rows show: launches, waits, copies, builds and kernels
    quantities    named numbers of a text in any layout: tables, keys and values, sentences
    lexicon       the words of the field: names by kind, heads of columns, labels of quantities
    counters      the counters among the quantities; sweeps over sizes
    nsight        NVIDIA Nsight Compute: CSV by metric or by launch, and the text report
    nsys          the database of Nsight Systems
    rocm          rocprof, rocprofv3 and rocprof-compute
    linux_perf    perf stat, annotate and report
    lines         rows of profiles by line, and what an instruction does
    proton        Triton's Proton
    torch_profile PyTorch's profiler: trace, events
    reader        recognises the kind from the text; reads pcm, nvidia-smi, rocm-smi, llvm-mca,
                  OSACA, op profiles of XProf, neuron-profile and amounts in sentences

Standard library only: the optimizer's collectors and portable sessions use it too.
"""
