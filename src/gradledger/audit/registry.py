"""All rules, found by one scan of `audit/rules/` for files that define `RULE`.

Nothing registers itself: adding a rule is adding a file.  A file that cannot be imported, or that does not keep the
contract, is reported by `load().broken` and does not take the other rules with it.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from gradledger.audit import rules
from gradledger.audit.rule import Rule, key_of
from gradledger.core.errors import RuleError, UsageError

_FILE = re.compile(r"([a-z])(\d\d)_[a-z0-9_]+")
FIXTURES = Path(rules.__file__).parent.parent / "fixtures"


@dataclass(frozen=True, slots=True)
class LoadedRule:
    """A rule and the module that judges by it."""

    rule: Rule
    module: Any

    @property
    def page(self) -> str:
        """Its manual page, markdown."""
        return str(self.module.__doc__ or "").strip()

    @property
    def fixtures(self) -> Path:
        """Folder of its example programs."""
        return FIXTURES / str(self.module.__name__).rpartition(".")[2][:3]


@dataclass(frozen=True, slots=True)
class Registry:
    """`rules` in order of code; `broken`: (code, reason) of rule files that could not be loaded."""

    rules: tuple[LoadedRule, ...]
    broken: tuple[tuple[str, str], ...] = ()

    def find(self, word: str) -> LoadedRule:
        """The rule with this code ("G1", "GL-G01") or name.

        Raises UsageError when there is none.
        """
        wanted = word.strip().lower()
        for loaded in self.rules:
            if wanted in (loaded.rule.name, loaded.rule.key.lower(), loaded.rule.code.lower()):
                return loaded
            try:
                if key_of(wanted) == loaded.rule.key:
                    return loaded
            except ValueError:
                pass
        raise UsageError(
            got=repr(word),
            wanted="a rule code such as GL-G01 or G1, or a rule name",
            where="rule look-up",
            next_step="`gradledger rules` lists every code and name",
        )

    def select(self, select: Iterable[str] = (), ignore: Iterable[str] = ()) -> tuple[LoadedRule, ...]:
        """Rules chosen by codes, names, or one letter for a whole series ("G"); no `select` means all.

        Raises UsageError for a word that names no rule.
        """
        chosen = self._expand(select) if (select := list(select)) else {r.rule.key for r in self.rules}
        chosen -= self._expand(ignore)
        return tuple(r for r in self.rules if r.rule.key in chosen)

    def _expand(self, words: Iterable[str]) -> set[str]:
        keys: set[str] = set()
        for word in words:
            series = word.strip().upper().removeprefix("GL-")
            if re.fullmatch(r"[A-Z]", series):
                members = {r.rule.key for r in self.rules if r.rule.code.startswith(series)}
                if members:
                    keys |= members
                    continue
            keys.add(self.find(word).rule.key)
        return keys


def check(stem: str, module: ModuleType) -> Rule:
    """The RULE of a rule module.

    Raises RuleError when the module does not keep the contract of `RuleModule`.
    """

    def wrong(got: str, wanted: str) -> RuleError:
        return RuleError(got=got, wanted=wanted, where=f"{stem}.py", next_step="see gradledger.audit.rule.RuleModule")

    rule = getattr(module, "RULE", None)
    if not isinstance(rule, Rule):
        raise wrong(f"RULE = {rule!r}", "a constant RULE of type Rule")
    prefix = rule.key.removeprefix("GL-").lower()
    if not stem.startswith(prefix + "_"):
        raise wrong(f"RULE.code = {rule.code!r}", f"a file name that begins with {prefix}_")
    for function in ("init", "update", "finish"):
        if not callable(getattr(module, function, None)):
            raise wrong(f"no function {function}", "init, update and finish")
    return rule


@lru_cache(maxsize=1)
def load() -> Registry:
    """Scan the rules folder (once a process)."""
    found: list[LoadedRule] = []
    broken: list[tuple[str, str]] = []
    taken: dict[str, str] = {}
    for stem in sorted(m.name for m in pkgutil.iter_modules(rules.__path__) if _FILE.fullmatch(m.name)):
        try:
            module = importlib.import_module(f"{rules.__name__}.{stem}")
            rule = check(stem, module)
            for mark in (rule.key, rule.name):
                if mark in taken:
                    raise RuleError(
                        got=f"{mark} again",
                        wanted=f"a mark that {taken[mark]}.py does not have",
                        where=f"{stem}.py",
                        next_step="give the rule another code and name",
                    )
        except Exception as error:  # one bad file must not silence the others
            broken.append((f"{stem[0].upper()}{int(stem[1:3])}", f"its file cannot be used: {error}"))
            continue
        taken.update({rule.key: stem, rule.name: stem})
        found.append(LoadedRule(rule, module))
    return Registry(tuple(found), tuple(broken))
