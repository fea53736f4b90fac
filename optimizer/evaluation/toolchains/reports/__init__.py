"""What compilers print, as metrics."""
