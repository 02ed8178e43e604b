"""Decides who answers, from a policy and a situation. Pure: it needs no side."""
