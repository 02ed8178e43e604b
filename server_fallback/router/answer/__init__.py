"""One answer that two sides may write, from the first ask to its end."""
