"""The recipe of the demo finder, which labels what is private in texts: see README.md."""
