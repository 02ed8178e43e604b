"""The bundle's format: the manifest, the folder on disk, and tuning records."""
