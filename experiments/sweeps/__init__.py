"""Simulations of many network configurations, and of many fault plans, on Spark."""
