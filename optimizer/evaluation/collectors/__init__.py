"""What a machine and a kernel report about themselves: tools and devices that are here, measured
ceilings of a device, and what profilers report. Standard library and torch only: it runs on a bare
GPU machine. Concludes nothing; that is `retrieval.diagnose`."""
