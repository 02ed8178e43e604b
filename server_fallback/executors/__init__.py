"""The executors that answer requests: our own engine, or another server."""
