"""Presets: measured access lines and paths by name, with the publication or data set of every figure."""
