"""Opening a film in a player of this computer, at a moment where the player can."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from prvr.cli.console import CommandError

PLAYERS = {"mpv": "--start={:.3f}", "vlc": "--start-time={:.3f}"}
"""Players that are known to take a start time, and the option that gives it, in seconds."""

_PATIENCE = 2.0  # seconds in which a player that cannot play says so


def open_film(film: Path, seconds: float) -> str:
    """Opens a film in mpv or vlc where one of them is on the PATH, or else in the system's player.

    The player goes on when the command ends.

    Args:
        film: the video file.
        seconds: where to start; players that are not in `PLAYERS` start at the beginning.

    Returns:
        What was done, as a sentence.

    Raises:
        CommandError: the file is gone, there is no player, or the player fails at once.
    """
    film = film.expanduser().resolve()
    if not film.is_file():
        raise CommandError(f"--open: {film}: no such file. Was it moved? Search again to follow the folder.")
    for name, option in PLAYERS.items():
        if (program := shutil.which(name)) is not None:
            _start([program, option.format(seconds), str(film)], film)
            return f"{film}: opened in {name}, at {seconds:.1f} s"
    if sys.platform == "win32":
        try:
            os.startfile(film)
        except OSError as error:
            raise CommandError(f"--open: {film}: Windows has no program for it ({error.strerror}).") from error
    else:
        name = "open" if sys.platform == "darwin" else "xdg-open"
        program = shutil.which(name)
        if program is None:
            raise CommandError(
                f"--open: no player was found: none of {', '.join([*PLAYERS, name])} is on the PATH. Install one of "
                f"them, or open {film} yourself, at {seconds:.1f} s."
            )
        _start([program, str(film)], film)
    return f"{film}: opened in the system's player; the moment is at {seconds:.1f} s"


def _start(command: list[str], film: Path) -> None:
    """Starts a program that goes on by itself; one that fails at once is explained."""
    quiet = subprocess.DEVNULL
    try:
        process = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)
        code = process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        return
    except OSError as error:
        raise CommandError(
            f"--open: {command[0]} cannot be started ({error.strerror}). Open {film} yourself."
        ) from error
    if code:
        raise CommandError(f"--open: {Path(command[0]).name} cannot open {film} (exit code {code}). Open it yourself.")
