"""Opens a video in a player of this computer, at a moment if the player supports it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from prvr.cli.console import CommandError

PLAYERS = {"mpv": "--start={:.3f}", "vlc": "--start-time={:.3f}"}
"""Players that can start at a time, and the option for it, in seconds."""

_TIMEOUT = 2.0  # seconds within which a player that cannot play exits


def open_video_file(video: Path, seconds: float) -> str:
    """Opens a video in mpv or vlc where one of them is on the PATH, or else in the system's player.

    The player keeps running when the command ends.

    Args:
        video: the video file.
        seconds: where to start; players that are not in `PLAYERS` start at the beginning.

    Returns:
        What was done, as a sentence.

    Raises:
        CommandError: the file is gone, there is no player, or the player fails at once.
        OSError: the player cannot be started.
    """
    video = video.expanduser().resolve()
    if not video.is_file():
        raise CommandError(f"--open: {video}: no such file. If it was moved, search again to update the library.")
    for name, option in PLAYERS.items():
        if (program := shutil.which(name)) is not None:
            _start([program, option.format(seconds), str(video)], video)
            return f"{video}: opened in {name}, at {seconds:.1f} s"
    if sys.platform == "win32":
        os.startfile(video)
    else:
        name = "open" if sys.platform == "darwin" else "xdg-open"
        program = shutil.which(name)
        if program is None:
            raise CommandError(
                f"--open: no player found: none of {', '.join([*PLAYERS, name])} is on the PATH. Install one of them, "
                f"or open {video} yourself, at {seconds:.1f} s."
            )
        _start([program, str(video)], video)
    return f"{video}: opened in the system's player; the moment is at {seconds:.1f} s"


def _start(command: list[str], video: Path) -> None:
    """Starts a program that keeps running; if it fails at once, the reason is raised."""
    quiet = subprocess.DEVNULL
    try:
        process = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)
        code = process.wait(_TIMEOUT)
    except subprocess.TimeoutExpired:
        return
    if code:
        raise CommandError(f"--open: {Path(command[0]).name} cannot open {video} (exit code {code}). Open it yourself.")
