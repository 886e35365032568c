"""``python -m dsv4_conformance.cli``."""

from dsv4_conformance.cli import main

main()
