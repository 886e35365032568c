"""Conformance suites for DeepSeek-V4 (DSV4) attention implementations."""

__version__ = "0.1.0"
