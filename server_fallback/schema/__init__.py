"""OpenAI's requests and answers as pydantic models. Names and meanings are those of OpenAI's API reference; our own
additions are marked as extensions.
"""
