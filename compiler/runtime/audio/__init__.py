"""Sound for models that read it: files, samples, log-mel frames, and transcription."""
