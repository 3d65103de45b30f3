"""How far out lorentz holds: per operation and dtype the largest radius up to which every value and gradient is right.

    python benchmarks/lorentz_radius.py [--curvature 1]

Points at growing distance from the origin (times sqrt(c)), alone and in pairs: along a ray, across it, opposite, at
random, with a point near the origin, and (in float32, where rounding moves them visibly apart) close ones at random.
The reference is the textbook's definition in as many digits as the radius asks for. A radius counts where all values
and all gradients (curvature included) are finite and within 0.1 % of the reference; rows whose true result is larger
than the dtype's largest number do not. The last radius tried is the largest that the dtype can store.
"""

import sys

import torch

from _harness import ROOT, environment, parse_options, show

sys.path.insert(0, str(ROOT / "tests" / "lorentz"))  # the textbook, shared with the tests

from far_rows import OPERATIONS, errors_at

WRONG = 1e-3
RADII = {
    torch.float32: (1, 5, 10, 15, 20, 22, 25, 30, 40, 44, 50, 60, 66, 75, 80, 85, 88),
    torch.float64: (1, 10, 20, 40, 80, 120, 170, 177, 200, 250, 300, 350, 400, 500, 600, 700, 709),
}


def main() -> None:
    options = parse_options(__doc__, curvature=1.0, operations=[""], verbose=False)
    print(environment())
    table = []
    for name in OPERATIONS:
        if options.operations != [""] and name not in options.operations:
            continue
        cells = []
        for dtype, mode in ((torch.float32, "auto"), (torch.float32, "native"), (torch.float64, "auto")):
            reached = [0.0, 0.0]
            stopped = [False, False]
            for radius in RADII[dtype]:
                errors = errors_at(name, radius, options.curvature, dtype, mode)
                if options.verbose:
                    print(name, dtype, mode, radius, *(f"{error:.1e}" for error in errors))
                for i, error in enumerate(errors):
                    stopped[i] |= not error <= WRONG
                    reached[i] = reached[i] if stopped[i] else radius
            cells += [f"{reached[0]:g}", f"{reached[1]:g}"]
        table.append([name, *cells])
    head = ["operation", "float32", "gradient", "float32, native", "gradient", "float64", "gradient"]
    show(f"largest radius at curvature -{options.curvature:g}", head, table)


if __name__ == "__main__":
    main()
