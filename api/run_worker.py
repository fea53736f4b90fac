"""`python -m api.run_worker JSON`: one run of the service, in its own process."""

from __future__ import annotations

import sys

from kb.memory import collect_rarely


def main(text: str) -> int:
    """Carry out one run, described as JSON; the exit code."""
    collect_rarely()
    from api.run_work import main as work

    return work(text)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
