"""From the bytes of a picture to patches for a model's tower. `compiler/ir/images.py` defines the words."""
