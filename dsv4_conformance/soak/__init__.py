"""Fresh random cases of every kind, judged by the suites' own tests; what fails is shrunk and kept (docs/soak.md)."""
