"""``python -m nearfar.compiler.cli`` is ``nearfar``."""

import sys

from . import main

sys.exit(main())
