"""Float64 definitions of every surface, written from docs/semantics.md; imports nothing but spec/."""
