"""Internal: what runs in Spark's tasks. `stages` has the functions that Spark calls, `operator` the stateful one."""
