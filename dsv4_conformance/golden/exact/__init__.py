"""The semantics once more, in integers: slow, torch-free, each result correctly rounded, so the same on every machine.

Imports only the standard library, spec/ and errors. It shares nothing with the float64 oracle, which it checks.
"""
