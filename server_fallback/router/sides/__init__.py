"""The two sides of a pair, and what is told from one to the other: requests flow in, what a side says flows out."""
