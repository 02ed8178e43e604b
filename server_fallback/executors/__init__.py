"""What answers a request: our own engine, or another server."""
