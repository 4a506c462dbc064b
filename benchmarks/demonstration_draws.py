"""Write draws 1 to 5 of the demonstration's messages: ``python benchmarks/demonstration_draws.py FOLDER``.

They have 5,040 messages to test on, 105 of each topic: more than the demonstration, which takes minutes.
"""

import sys
from pathlib import Path

from attendrop.cli.demo import write_messages

if __name__ == "__main__":
    for draw in range(1, 6):
        print(*write_messages(Path(sys.argv[1]) / str(draw), draw, test_rows=105))
