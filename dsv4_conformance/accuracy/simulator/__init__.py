"""A simulated OpenAI-compatible server that answers the real questions as well, or as badly, as it is told to."""
