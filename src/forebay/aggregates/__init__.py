"""Aggregate functions: what the user names (`functions`), and how the operator computes them (`aggregation`)."""
