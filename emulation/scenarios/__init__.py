"""Scenario files: an emulated WAN and what befalls it, in TOML."""
