"""The state store, free of any engine: no module in this package imports Spark."""
