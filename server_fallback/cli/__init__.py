"""The commands of the far side: ``nearfar serve``, ``index``, ``node``, ``gateway``, ``router`` and ``bench serve``."""
