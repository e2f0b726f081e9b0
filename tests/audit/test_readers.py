"""What small readers of the source say: flags of terminal states, patterns, parts of a split, objects changed in
passing."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from gradledger.audit import _back_in_time, _merged_ends, _met, _partial, _terminals, _time_limits
from gradledger.audit._made_at import made_at
from gradledger.audit._turned import turned_in_passing
from gradledger.core.site import Frame, Site


@pytest.fixture
def written(tmp_path: Path):  # type: ignore[no-untyped-def]
    count = iter(range(100))

    def write(text: str) -> str:
        path = tmp_path / f"program{next(count)}.py"  # what was parsed once is kept
        path.write_text(textwrap.dedent(text).lstrip())
        return str(path)

    return write


@pytest.mark.parametrize(
    ("mask", "inverted"),
    [
        ("1 - done", False),
        ("~terminated", False),
        ("1 - not_done", True),
        ("1 - mask", True),
        ("done", True),
        ("logical_not(dones)", False),
    ],
)
def test_a_mask_the_wrong_way_round(written, mask: str, inverted: bool) -> None:  # type: ignore[no-untyped-def]
    file = written(f"""
        def update(r, v, done, dones, terminated, not_done, mask):
            y = r + 0.9 * ({mask}) * v
            return y
        """)
    assert _terminals.inverted(file, 2) is inverted


def test_a_flag_that_is_negated_elsewhere_is_right(written) -> None:  # type: ignore[no-untyped-def]
    file = written("""
        def keep(memory, done):
            memory.append(1.0 - done)

        def update(r, v, go_on):
            y = r + 0.9 * go_on * v
        """)
    assert not _terminals.inverted(file, 5)


def test_flags_one_step_off(written) -> None:  # type: ignore[no-untyped-def]
    text = """
        def gae(rewards, dones, values, next_done, next_value):
            for t in reversed(range(4)):
                if t == 3:
                    cont, nxt = 1.0 - next_done, next_value
                else:
                    cont, nxt = 1.0 - dones[{index}], values[t + 1]
                last = rewards[t] + cont * nxt
        """
    found = _back_in_time.one_step_off(written(text.format(index="t")), 7)
    assert found is not None
    assert (found.line, found.flag, found.last, found.last_line) == (6, "dones", "next_done", 4)
    assert _back_in_time.one_step_off(written(text.format(index="t + 1")), 7) is None


def test_the_time_limit_alone_is_kept(written) -> None:  # type: ignore[no-untyped-def]
    text = """
        def collect(env, memory, s):
            a = 0
            s2, r, {names}, info = env.step(a)
            memory.push(s, a, r, s2, {kept})
            if x or y:
                env.reset()
        """
    (limit,) = _time_limits.limits_as_ends(written(text.format(names="x, y", kept="y")))
    assert (limit.line, limit.kept, limit.name, limit.alone) == (3, 4, "y", True)
    assert _time_limits.limits_as_ends(written(text.format(names="x, y", kept="x"))) == []


def test_a_flag_that_is_kept_and_never_read(written) -> None:  # type: ignore[no-untyped-def]
    text = """
        class Memory:
            def add(self, i, s, r, d):
                self.s[i], self.r[i], self.done[i] = s, r, d

            def sample(self, i):
                total = 0
                for k in range(3):
                    total += 0.9**k * self.r[i + k]{mask}
                return self.s[i], total
        """
    assert _terminals.kept_unread(written(text.format(mask=""))) == ("done", 3, 8)
    assert _terminals.kept_unread(written(text.format(mask=" * (1 - self.done[i])"))) is None


NAMES = ["encoder.embed.weight", "encoder.layers.0.weight", "encoder.layers.1.weight", "head.weight", "head.bias"]


@pytest.mark.parametrize(
    ("patterns", "missed"),
    [
        ('["encoder.embed.*", "encoder.layer.0.*"]', ["encoder.layer.0.*"]),
        (r'[r"^encoder\.layer[01]\.", r"^head\."]', [r"^encoder\.layer[01]\."]),
        ('("bias", "LayerNorm")', []),  # words are there for other models, too
        ('["encoder.layer.0", "encoder.layer.1"]', []),  # none matches: another rule's
        ('["encoder.layers.0", "head."]', []),
        ('["data.csv", "model.pt"]', []),
    ],
)
def test_one_pattern_of_a_list(written, patterns: str, missed: list[str]) -> None:  # type: ignore[no-untyped-def]
    file = written(f"FREEZE = {patterns}\n")
    assert [one.pattern for one in _partial.unmatched(file, NAMES)] == missed


@pytest.mark.parametrize(
    ("line", "held"),
    [
        ("score = net(x_val)", True),
        ("acc = accuracy(net, test_dl)", True),
        ("fit = net(x_train)", False),
        ("both = net(train_and_val)", False),
        ("y = net(x)", False),
        ("val = critic(states)", False),
        ("train_acc = score(net, rows)", False),
    ],
)
def test_what_is_named_for_rows_held_out(written, line: str, held: bool) -> None:  # type: ignore[no-untyped-def]
    file = written(f"{line}\n")
    assert _met.asks_for_held_out(Site(file, 1, "<module>")) is held


def test_a_function_named_for_tests_may_be_given_training_rows(written) -> None:  # type: ignore[no-untyped-def]
    file = written("""
        def test(net, loader):
            for x in loader:
                net(x)

        test(net, train_dl)
        test(net, held_dl)
        """)
    calls = [Frame(file, line, "<module>") for line in (5, 6)]
    asked = [_met.asks_for_held_out(Site(file, 3, "test", callers=(call,))) for call in calls]
    assert asked == [False, True]


def test_a_library_names_its_own_ways_and_no_rows(written) -> None:  # type: ignore[no-untyped-def]
    own = written("told = model.evaluate(x, y)\nheld = model.evaluate(x_test, y_test)\n")
    library = Path(own).parent / "site-packages" / "trainer.py"
    library.parent.mkdir()
    library.write_text("def evaluate(self, iterator):\n    return self.test_function(iterator)\n")
    asked = [
        _met.asks_for_held_out(Site(str(library), 2, "evaluate", callers=(Frame(own, line, "<module>"),)))
        for line in (1, 2)
    ]
    assert asked == [False, True]


def test_objects_changed_in_passing(written) -> None:  # type: ignore[no-untyped-def]
    text = """
        class Noise:
            def quiet(self):
                self.on = False
                return {given}

        noise = Noise()
        a = Rows(1, noise)
        b = Rows(2, noise.quiet())
        """
    (found,) = turned_in_passing(written(text.format(given="self")), "Noise", "on")
    assert (found.name, found.lines) == ("noise", (8, 7))
    assert list(turned_in_passing(written(text.format(given="Noise()")), "Noise", "on")) == []


def test_where_the_names_of_a_line_were_made(written) -> None:  # type: ignore[no-untyped-def]
    file = written("""
        def sample(n):
            q = draw(n)
            return forward(q), q

        def train():
            tip, q = sample(4)
            loss = mse(net(tip), q)
        """)
    assert {site.line for site in made_at(Site(file, 7, "train"))} == {1, 2, 3, 6}


@pytest.mark.parametrize(
    ("alive", "carried", "merged"),
    [
        ("1 - torch.maximum(term, trunc)", "alive", True),
        ("~(terminated | truncated)", "alive", True),
        ("1 - torch.maximum(term, trunc)", "alive + trunc", False),  # the time limit is used elsewhere
        ("1 - term", "(1 - torch.maximum(term, trunc))", False),
    ],
)
def test_a_time_limit_that_masks_the_next_value(written, alive: str, carried: str, merged: bool) -> None:  # type: ignore[no-untyped-def]
    file = written(f"""
        def advantages(reward, value, next_value, term, trunc, terminated, truncated):
            run = 0.0
            alive = {alive}
            for t in reversed(range(len(reward))):
                delta = reward[t] + 0.99 * alive[t] * next_value[t] - value[t]
                run = delta + 0.95 * {carried} * run
            return run
        """)
    found = _merged_ends.merged_mask(file, 5)
    assert (found is not None) is merged
    if found is not None:
        assert (found.line, found.flag, found.used, found.value) == (3, "alive", 5, "next_value")
