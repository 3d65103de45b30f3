"""Recall by moment-to-video ratio: a bar for each report in each group of queries.

    python examples/recall_by_ratio.py [RUN_OR_REPORT ...] [--output ratios.png]

Reports are runs of `prvr train`, or files of `prvr evaluate`, all of one split. Without arguments: zero-shot search of
the toy corpus with the joint encoder, which is made first."""

import argparse
from contextlib import closing
from pathlib import Path

from matplotlib.figure import Figure

from prvr import load_config
from prvr.evaluation import EvaluationReport, report_from_scores
from prvr.evaluation.zero_shot import zero_shot_scores
from prvr.training import open_split
from prvr.training.splits import run_corpus

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("reports", nargs="*", type=Path)
parser.add_argument("--output", type=Path, default=Path("ratios.png"))
args = parser.parse_args()

files = {path.stem: path / "evaluation.json" if path.is_dir() else path for path in args.reports}
reports = {name: EvaluationReport.from_json(file) for name, file in files.items()}
if not reports:
    config = load_config("hybrid-toy", {"data.collection": "toy-tiny"})
    corpus = run_corpus(config)
    with closing(open_split(config, "test")) as split:
        reports["zero-shot"] = report_from_scores(zero_shot_scores(corpus, "test"), split)

figure = Figure(figsize=(8, 4), layout="constrained")
axes, width = figure.subplots(), 0.8 / len(reports)
for number, (name, report) in enumerate(reports.items()):
    places = [group + (number - (len(reports) - 1) / 2) * width for group in range(len(report.groups))]
    axes.bar(places, [group.metrics.sumr for group in report.groups], 0.9 * width, label=name)
    for group in report.groups:
        print(
            f"{name}: ({group.low:g}, {group.high:g}], {group.metrics.queries} queries: SumR {group.metrics.sumr:.1f}"
        )
groups = next(iter(reports.values())).groups
axes.set_xticks(range(len(groups)), [f"({group.low:g}, {group.high:g}]" for group in groups])
axes.set(xlabel="moment-to-video ratio", ylabel="SumR, text to video")
axes.legend()
figure.savefig(args.output)
print(f"{args.output}: written")
