"""One answer that two sides may write, from the first request to its end."""
