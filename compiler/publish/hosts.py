"""Files for common hosts: which files a browser may cache forever, and that other origins may read them.

A site works without them. They save requests for files whose names have their hash, and a page of another origin needs
the permission.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

FOREVER = "public, max-age=31536000, immutable"
ALWAYS_ASK = "no-cache"
ANY_ORIGIN = ("Access-Control-Allow-Origin", "*")
# The folders of a bundle whose files have their hash in their names.
HASHED = ("weights", "kernels")


def host_files(folders: Sequence[str]) -> dict[str, str]:
    """By name. ``folders``: those of the bundles whose files have names with their hashes."""
    return {
        "_headers": cloudflare(folders),
        "vercel.json": vercel(folders),
        "nginx.conf": nginx(folders),
    }


def cloudflare(folders: Sequence[str]) -> str:
    """For Cloudflare Pages and Netlify (developers.cloudflare.com/pages/configuration/headers)."""
    lines = ["/*", f"  {': '.join(ANY_ORIGIN)}"]
    for folder in folders:
        for name in HASHED:
            lines += [f"/{folder}/{name}/*", f"  Cache-Control: {FOREVER}"]
    return "\n".join(lines) + "\n"


def vercel(folders: Sequence[str]) -> str:
    """See vercel.com/docs/project-configuration#headers."""
    everywhere = {"source": "/(.*)", "headers": [header(*ANY_ORIGIN)]}
    hashed = [
        {"source": f"/{folder}/{name}/(.*)", "headers": [header("Cache-Control", FOREVER)]}
        for folder in folders
        for name in HASHED
    ]
    return json.dumps({"headers": [everywhere, *hashed]}, indent=2) + "\n"


def header(key: str, value: str) -> dict[str, str]:
    return {"key": key, "value": value}


def nginx(folders: Sequence[str]) -> str:
    """For a `server` block: include this file. An add_header in a location replaces those outside of it."""
    allow = f'add_header {ANY_ORIGIN[0]} "{ANY_ORIGIN[1]}";'
    lines = [allow]
    for folder in folders:
        for name in HASHED:
            lines.append(f'location /{folder}/{name}/ {{ {allow} add_header Cache-Control "{FOREVER}"; }}')
    return "\n".join(lines) + "\n"
