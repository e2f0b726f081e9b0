"""Names of games as people write them: Pong, MsPacman, ms-pacman, "Ms Pacman" are all ROMs of ale-py."""

from __future__ import annotations

import difflib
import importlib
import re

from gradledger.core.errors import UsageError


def is_rom(name: str) -> bool:
    """A name with a version (CartPole-v1) is gymnasium's, one without is a ROM's."""
    return not re.search(r"-v\d+$", name)


def resolve(name: str) -> str:
    """The ROM's own name, such as ``ms_pacman``; a gymnasium id comes back as it is.

    Raises:
        UsageError: there is no such game, or the name is gymnasium's for an Atari game.
    """
    atari = re.match(r"(?:ALE/)?([A-Za-z0-9]+?)(NoFrameskip|Deterministic)?(-ram)?-v\d+$", name)
    if not is_rom(name):
        if atari is None or not (name.startswith("ALE/") or atari[2]):
            return _registered(name)
        raise UsageError(
            got=f"--game {name}, a gymnasium id of an Atari game",
            wanted="the name of the ROM: preprocessing and stacking are the recipe's own",
            where="recipes",
            next_step=f"--game {atari[1]}; add --sticky 0.25 for the sticky actions that -v5 and -v0 have",
        )
    known = _roms()
    wanted = _squeezed(name)
    by_letters = {_squeezed(rom): rom for rom in known}
    if wanted in by_letters:
        return by_letters[wanted]
    near = difflib.get_close_matches(wanted, by_letters, n=3)
    raise UsageError(
        got=f"--game {name!r}",
        wanted=f"one of the {len(known)} ROMs of ale-py, or a gymnasium id with its version",
        where="recipes",
        next_step=f"did you mean {' or '.join(by_letters[one] for one in near)}?"
        if near
        else "python -c 'import ale_py.roms; print(*ale_py.roms.get_all_rom_ids())' lists them",
    )


def _registered(name: str) -> str:
    try:
        gymnasium = importlib.import_module("gymnasium")
    except ImportError as missing:
        raise UsageError(
            got=f"no {missing.name}",
            wanted=f"gymnasium for {name}",
            where="recipes",
            next_step="pip install 'gradledger[rl]'",
        ) from missing
    try:
        gymnasium.spec(name)
    except gymnasium.error.Error as error:
        raise UsageError(
            got=f"--game {name}",
            wanted="an environment that gymnasium knows, or a ROM's name without a version",
            where="recipes",
            next_step=f"gymnasium says: {error}",
        ) from None
    return name


def _roms() -> list[str]:
    try:
        roms = importlib.import_module("ale_py.roms")
    except ImportError as missing:
        raise UsageError(
            got=f"no {missing.name}",
            wanted="ale-py for a ROM's name",
            where="recipes",
            next_step="pip install 'gradledger[rl]', or --game CartPole-v1 with gymnasium alone",
        ) from missing
    return sorted(roms.get_all_rom_ids())


def _squeezed(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).casefold()
