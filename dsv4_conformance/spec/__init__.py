"""What is required: geometry, byte layouts and the registry of requirements. Imports no torch."""
