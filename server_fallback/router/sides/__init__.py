"""The two sides of a pair, and how an answer is handed over between them."""
