"""The command line: parse arguments, call the library, print. Nothing else in cfel prints.

Results go to standard output, everything else to standard error. Exit codes: 0 success, 1 failure, 2 wrong
usage or configuration, 130 interrupted.
"""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    try:
        # Imported here, as it takes a while and Ctrl-C may arrive meanwhile.
        from cfel.cli.dispatch import run_command

        return run_command(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
