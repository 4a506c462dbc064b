"""``python -m attendrop``, also for ``torchrun -m attendrop`` and ``accelerate launch -m attendrop``."""

import sys

from attendrop.cli import main

sys.exit(main())
