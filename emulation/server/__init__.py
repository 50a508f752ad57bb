"""Supervisor process of a testbed, for hosts of every kind."""
