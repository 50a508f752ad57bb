"""Hosts as containers: the image, the engine, and links shaped from outside the containers."""
