"""`python -m headgate` is the `headgate` command."""

import sys

from headgate.cli import main

sys.exit(main())
