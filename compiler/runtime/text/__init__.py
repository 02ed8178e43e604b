"""Text to tokens and back: the tokenizer and the chat template."""
