"""The tiers below a device's prefix cache: pages and states in the host's memory and on its disk."""
