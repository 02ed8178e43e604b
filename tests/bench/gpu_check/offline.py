"""Runs a command in a network namespace that has only its own loopback: unshare -rn PYTHON offline.py COMMAND..."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys

# Linux, include/uapi/linux/sockios.h and if.h.
SIOCSIFFLAGS, IFF_UP = 0x8914, 1


def main() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
