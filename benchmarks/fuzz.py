"""What a damaged file does: it is refused in one sentence, or it changes nothing. Every format that prvr reads.

    python benchmarks/fuzz.py [--rounds 4] [--most 400] [--seed 0] [--only index store ...]

Each file of each kind of item (an index, a store, a run, a corpus, ...) is damaged in turn: bits and bytes changed,
blocks missing, repeated, zeroed, swapped, garbage, values of JSON replaced one by one, and a folder, a pipe or a
dangling link in its place. A process of its own reads each copy, all of it. A case is bad if the answer is a traceback,
a crash, a hang, 800 MiB more memory or, where hashes protect the content, other content that nothing notices. Prints a
table, then the bad cases; exits with 1 if there are any.
"""

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "prvr"))

from fuzz import ITEMS, Outcome, survey

RESULTS = ("as before", "read otherwise", "refused", "other content", "traceback", "crash", "hang", "memory")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4, help="copies of each kind of damage for each file")
    parser.add_argument("--most", type=int, help="cases of each item at most, drawn from all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=[item.name for item in ITEMS], help="kinds of items")
    args = parser.parse_args()
    outcomes: list[Outcome] = []
    print("| item | cases | " + " | ".join(RESULTS) + " |")
    print("|---|" + "---|" * (1 + len(RESULTS)))
    for item in ITEMS:
        if args.only and item.name not in args.only:
            continue
        with tempfile.TemporaryDirectory() as folder:
            found = survey(item, Path(folder) / "work", seed=args.seed, rounds=args.rounds, most=args.most)
        counts = Counter(outcome.result for outcome in found)
        print(f"| {item.name} | {len(found)} | " + " | ".join(str(counts[r]) for r in RESULTS) + " |", flush=True)
        outcomes += found
    bad = [outcome for outcome in outcomes if not outcome.is_good]
    print(f"\n{len(outcomes)} cases, {len(bad)} of them bad")
    for outcome in bad:
        print(f"\n{outcome.item}: {outcome.case}: {outcome.result}\n{outcome.detail}")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
