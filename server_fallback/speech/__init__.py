"""Speech: what answers /v1/audio/speech."""
