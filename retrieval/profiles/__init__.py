"""What profilers print, read into metrics by the profilers' own names: pure functions of text.

    profile       the typed result, and what the readers share
    tables        CSV tables in whatever was printed around them
    nsight        NVIDIA Nsight Compute: CSV by metric or by launch, and the text report
    rocm          rocprof, rocprofv3 and rocprof-compute
    linux_perf    perf stat: text, CSV, JSON
    proton        Triton's Proton
    torch_profile PyTorch's profiler: table, trace, events
    neuron        neuron-profile and neuron-explorer: summary as JSON
    reader        recognises the kind from the text

Standard library only: the optimizer's collectors and portable sessions use it too.
"""
