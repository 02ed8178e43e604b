"""The commands of the far side: ``nearfar serve`` and ``nearfar bench serve``. Their parsers import nothing that takes time."""
