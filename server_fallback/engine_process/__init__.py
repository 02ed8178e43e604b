"""An engine in a process of its own, so that no client's text delays the device."""
