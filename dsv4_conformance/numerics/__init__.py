"""Comparison with the oracle: error budgets, verdicts, semantic mutants, discrimination."""
