"""Several implementations or releases under the same plan, each in an environment of its own, side by side."""
