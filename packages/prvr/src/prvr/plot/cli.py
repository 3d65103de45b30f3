"""`prvr plot`: figures of a system; every entry of `prvr.plot.PLOTS` is a command."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from prvr.cli.folders import chosen_data, device_of, open_corpus_of
from prvr.cli.options import DataRoot, Device, PictureFile, Preset, Split, Stages, System, parsed_keys
from prvr.plot import PLOTS

group = App(name="plot")


def _register(name: str, settings_type: type, description: str) -> None:
    def run(
        system: System,
        /,
        *,
        settings: Annotated[settings_type, Parameter(name="*")] = settings_type(),  # pyright: ignore[reportInvalidTypeForm]
        output: PictureFile = Path(f"{name}.png"),
        stage: Stages = [],
        split: Split = None,
        data_root: DataRoot = None,
        preset: Preset = None,
        device: Device = "auto",
    ) -> None:
        from prvr.plot import draw, save_figure
        from prvr.systems import open_system, parse_stage

        torch_device = device_of(device)
        opened = open_system(system, [parse_stage(text) for text in stage], device=torch_device, root=data_root)
        config = chosen_data(preset, opened.config_file, system, parsed_keys({}, data__root=data_root))
        open_corpus_of(config)
        figure = draw(name, opened, config, split, asdict(settings), device=torch_device)
        print(f"{save_figure(figure, output)}: {name} of {system}")

    group.command(run, name=name, help=f"{description}.")


def add_plots() -> None:
    """Makes a command of every registered plot."""
    for entry in PLOTS:
        if entry.name not in group:
            _register(entry.name, entry.settings, entry.description)


add_plots()
