"""Publishes bundles as a static site: a folder, a repository on the hub, or a bucket."""
