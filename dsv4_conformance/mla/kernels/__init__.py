"""Kernels of the built-in implementation: cache bytes and sparse attention."""
