"""An engine in a separate process, so that no client's text delays the device."""
