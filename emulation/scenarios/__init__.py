"""Scenario files: an emulated WAN with events, in TOML."""
