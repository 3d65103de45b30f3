"""Adds `prvr papers`, whose module is imported when it is used."""

from prvr.cli.options import MODELS, app

app.command(
    "prvr.papers.cli:group",
    name="papers",
    group=MODELS,
    help="Reproduce a table or figure of a paper, next to the published numbers.",
)
