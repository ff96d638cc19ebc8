"""`python -m crestgate` is the `crestgate` command."""

import sys

from crestgate.cli import main

sys.exit(main())
