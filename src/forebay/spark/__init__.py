"""Internal: forebay on PySpark Structured Streaming. `driver` plans, `worker` runs in tasks."""
