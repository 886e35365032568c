"""What is told of a run, all of it derived from its journal."""
