"""Presets: measured access lines and paths by name, each figure with the publication or data set that it is from."""
