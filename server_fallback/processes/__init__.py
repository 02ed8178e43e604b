"""The child processes of the server: how they start, talk, are watched, and are started again or ended."""
