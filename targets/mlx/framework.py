"""MLX itself, which is imported only when it is used."""

from __future__ import annotations

from typing import Any

from nearfar.compiler.runtime.errors import ToolError


def load_mlx() -> Any:
    """mlx.core. Raises ToolError."""
    try:
        import mlx.core as mx
    except ImportError as error:
        raise ToolError(f"running MLX bundles needs the package mlx ({error}): pip install 'nearfar[mlx]'") from error
    return mx
