"""The main job: train a retriever and evaluate it. The same code as `prvr train`, with the same options.

    python examples/train_prvr.py --preset dreamprvr-tvr --data-root ROOT                 # the paper's recipe
    python examples/train_prvr.py --preset best-tvr --data-root ROOT --optim.lr 5e-4      # any key, dotted
    python examples/train_prvr.py                                                         # best-toy, no download

ROOT holds the public feature files (docs/data.md). The run folder gets configuration, metrics, curves and checkpoints.

Quick: --data.collection toy-tiny --train.epochs 1 --output out
"""

import sys

from prvr.cli import main

if __name__ == "__main__":
    arguments = sys.argv[1:]
    named = any(word.split("=")[0] in ("--preset", "--config", "--resume", "-h", "--help") for word in arguments)
    sys.exit(main(["train", *([] if named else ["--preset", "best-toy"]), *arguments]))
