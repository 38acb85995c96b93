"""`python -m tests.soak --seconds 600`: exit code 1 if something is wrong; Ctrl-C ends it early."""

import argparse
import json
import sys
from pathlib import Path

from tests.soak.run import run_soak


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--images", type=int, default=500, help="that are added, moved, removed")
    parser.add_argument("--readers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-g", "--gallery", type=Path, help="make it in this folder and keep it")
    options = parser.parse_args()
    report = run_soak(
        seconds=options.seconds,
        n_images=options.images,
        n_readers=options.readers,
        seed=options.seed,
        folder=options.gallery,
    )
    print(json.dumps(report.to_dict(), indent=2))
    for problem in report.problems:
        print(f"problem: {problem}", file=sys.stderr)
    if report.is_interrupted:
        print("interrupted", file=sys.stderr)
    sys.exit(1 if report.problems else 130 if report.is_interrupted else 0)


if __name__ == "__main__":
    main()
