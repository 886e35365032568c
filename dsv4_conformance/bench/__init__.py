"""Measurements of the harness itself."""
