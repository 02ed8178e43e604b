"""Documents, cut into passages, in a store that is searched by their vectors."""
