"""OpenAI's requests and answers as pydantic models. Names and meanings are those of OpenAI's API reference; what is our own is marked as an
extension.
"""
