"""Runs an implementation on a case and judges what it returns. Imports torch: loaded only inside workers."""
