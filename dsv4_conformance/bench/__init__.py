"""Measurements: of the harness, and of what the built-in layer adds to its kernels."""
