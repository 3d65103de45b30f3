"""What a damaged file does: it is refused in one sentence, or it changes nothing. Every format that prvr reads.

    python benchmarks/fuzz.py [--rounds 4] [--most 400] [--seed 0] [--only index store ...]

Each file of each kind of item (an index, a store, a run, a corpus, ...) is damaged in turn: bits and bytes changed,
blocks missing, repeated, zeroed, swapped, garbage, values of JSON replaced one by one, and a folder, a pipe or a
dangling link in its place. A process of its own reads each copy, all of it. A case is bad if the answer is a traceback,
a crash, a hang, 800 MiB more memory or, where hashes protect the content, other content that nothing notices. Prints a
table, then the bad cases; exits with 1 if there are any.
"""

import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "prvr"))

from _harness import option, parse_options, show
from fuzz import ITEMS, Outcome, survey

RESULTS = ("as before", "read otherwise", "refused", "other content", "traceback", "crash", "hang", "memory")


def main() -> int:
    args = parse_options(
        __doc__,
        rounds=option(4, "copies of each kind of damage for each file"),
        most=option(None, "cases of each item at most, drawn from all", type=int),
        only=option([], "kinds of items", choices=[item.name for item in ITEMS]),
    )
    rows = []
    outcomes: list[Outcome] = []
    for item in ITEMS:
        if args.only and item.name not in args.only:
            continue
        with tempfile.TemporaryDirectory() as folder:
            survey_outcomes = survey(item, Path(folder) / "work", seed=args.seed, rounds=args.rounds, most=args.most)
        counts = Counter(outcome.result for outcome in survey_outcomes)
        rows.append([item.name, len(survey_outcomes), *(counts[result] for result in RESULTS)])
        print(f"{item.name}: {len(survey_outcomes)} cases", flush=True)
        outcomes += survey_outcomes
    show("outcomes", ["item", "cases", *RESULTS], rows)
    bad = [outcome for outcome in outcomes if not outcome.is_good]
    print(f"\n{len(outcomes)} cases, {len(bad)} of them bad")
    for outcome in bad:
        print(f"\n{outcome.item}: {outcome.case}: {outcome.result}\n{outcome.detail}")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
