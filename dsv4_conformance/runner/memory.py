"""Memory of a process that judges on the CPU: what is freed stays with it for the next case."""

import ctypes

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3
"""glibc's numbers of these parameters (mallopt(3))."""
KEPT = {TRIM_THRESHOLD: 1 << 28, MMAP_THRESHOLD: 1 << 25, TOP_PAD: 1 << 26}
"""In bytes; 32 MiB is the largest threshold for mmap that glibc takes."""


def keep_freed() -> bool:
    """Have malloc keep up to 256 MiB of freed memory. False where there is no glibc, and nothing is changed.

    A case frees every tensor it makes. Given back to the system at once and faulted in again for the next tensor, those
    pages take an eighth of the time of a layer's cases.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # no such function, or, on Windows, no library without a name
        return False
    return all([mallopt(parameter, size) == 1 for parameter, size in KEPT.items()])
