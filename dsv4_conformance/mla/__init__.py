"""The built-in DeepSeek-V4 attention, written in torch from the spec; shares no code with the oracle."""
