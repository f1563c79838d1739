"""Internal: aggregate functions. What users name is in `functions`; how the operator computes it in `aggregation`."""
