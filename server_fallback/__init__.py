"""The far side: an engine with continuous batching, and a server that answers OpenAI's requests."""
