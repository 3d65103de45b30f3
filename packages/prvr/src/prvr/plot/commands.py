"""Adds `prvr plot`, whose module is imported when it is used."""

from prvr.cli.options import MODELS, app

app.command("prvr.plot.cli:group", name="plot", group=MODELS, help="Plot what a system computes, as PNG, PDF or SVG.")
