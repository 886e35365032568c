"""Judging one attention call dumped from a live server."""
