"""A bundle in a browser, from Python: a server for the page, and headless Chromium to drive it."""
