"""Solvers of linear and mixed-integer programs, and of largest flows."""
