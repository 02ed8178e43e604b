"""Images of requests: where their bytes come from, and how they are decoded."""
