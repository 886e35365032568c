"""Goldens: small recorded cases with correctly rounded results, made and checked by one command (docs/golden.md)."""
