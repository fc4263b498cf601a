"""The command line: parse, call, print. The only part of cfel that prints.

Results go to standard output, everything else to standard error. Exit codes: 0 done, 1 failed, 2 wrong usage
or configuration, 130 interrupted.
"""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    try:
        # Loaded here, as Ctrl-C may come in the seconds that it takes.
        from cfel.cli.program import run_program

        return run_program(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
