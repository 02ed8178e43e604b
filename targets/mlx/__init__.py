"""MLX: a folder that mlx-lm loads (`export.py`), run here by `runner.py`, on Metal or a CPU."""
