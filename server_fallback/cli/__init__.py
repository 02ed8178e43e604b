"""The commands of the far side: ``nearfar serve``, ``gateway``, ``router`` and ``bench serve``. Their parsers import
nothing slow.
"""
