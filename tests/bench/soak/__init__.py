"""A soak of the server: honest clients whose answers are compared with those given alone, and attacks beside them. See __main__.py."""
