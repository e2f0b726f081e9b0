"""Shows a file in the user's browser without waiting for it, and without a word on our streams."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

_OPENERS = {"darwin": ("open",)}
_LINUX = ("xdg-open", "sensible-browser", "x-www-browser", "firefox", "chromium", "google-chrome")


def show(page: Path) -> str:
    """Start a browser on `page`; returns "" or why none was started.  Never waits, never raises.

    The variable BROWSER is obeyed as elsewhere: commands separated by `:`, each with `%s` for the address.
    """
    if sys.platform.startswith("win"):
        try:
            os.startfile(page)  # type: ignore[attr-defined, unused-ignore]
        except OSError as error:
            return str(error)
        return ""
    address = page.absolute().as_uri()
    chosen = os.environ.get("BROWSER", "")
    if not chosen and sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return "there is no display"
    commands = [c for c in chosen.split(os.pathsep) if c.strip()] or list(_OPENERS.get(sys.platform, _LINUX))
    problem = "no browser was found; set BROWSER to name one"
    for command in commands:
        try:
            words = shlex.split(command)
        except ValueError as error:
            problem = f"BROWSER: {error}"
            continue
        if not words or shutil.which(words[0]) is None:
            continue
        whole = [w.replace("%s", address) for w in words] if "%s" in command else [*words, address]
        try:
            # a session of its own: it outlives this command, and an interrupt in the terminal does not reach it
            subprocess.Popen(
                whole,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                close_fds=True,
            )
        except OSError as error:
            problem = str(error)
            continue
        return ""
    return problem
