"""The demo model: a small Llama trained from nothing on text that this folder generates."""
