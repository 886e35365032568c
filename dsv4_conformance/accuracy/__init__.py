"""Accuracy of a served model: runs of GSM8K and AIME25, their records, and the verdict against a golden."""
