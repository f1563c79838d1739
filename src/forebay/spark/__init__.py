"""forebay on PySpark Structured Streaming: what the user calls, and the vehicle that runs it."""
