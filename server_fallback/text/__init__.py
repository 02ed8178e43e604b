"""Between texts and tokens: chat prompts, stop strings, grammars, tool calls."""
