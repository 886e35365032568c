"""Cases: descriptions of inputs, the deterministic tensors derived from them, and calls rearranged."""
