"""Readers of profiler output: pure functions from text to metrics by the profilers' names.

    profile       the typed result, and functions shared by the readers
    tables        CSV tables within other output
    nsight        NVIDIA Nsight Compute: CSV by metric or by launch, and the text report
    rocm          rocprof, rocprofv3 and rocprof-compute
    linux_perf    perf stat: text, CSV, JSON
    lines         rows of profiles by line, and what an instruction does
    nsys          Nsight Systems and nvprof
    intel         unitrace and VTune
    xla           XProf: op profile and HLO statistics
    xcode         counters of Apple's GPUs
    proton        Triton's Proton
    torch_profile PyTorch's profiler: table, trace, events
    neuron        neuron-profile and neuron-explorer: summary as JSON
    reader        recognises the kind from the text

Standard library only: the optimizer's collectors and portable sessions use it too.
"""
