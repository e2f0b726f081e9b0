"""The simulated arm against its own drawing: where the hand is, how it moves, what an environment has to keep."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from gradledger.recipes import _arm6_env, _arm6_expert, _arm6_film
from gradledger.recipes._arm6_env import HOME, SPEED, Arm6Env, ArmError, vector
from gradledger.recipes._arm6_rollout import play

Array = NDArray[np.float64]


def about_z(a: float) -> Array:
    return np.array([[np.cos(a), -np.sin(a), 0], [np.sin(a), np.cos(a), 0], [0, 0, 1.0]])


def about_y(a: float) -> Array:
    return np.array([[np.cos(a), 0, np.sin(a)], [0, 1.0, 0], [-np.sin(a), 0, np.cos(a)]])


# Each joint: what it turns about, and what follows behind it until the next one, m. From the drawing, not from MuJoCo.
DRAWING = ((about_z, 0.1), (about_y, 0.34), (about_y, 0.14), (about_z, 0.16), (about_y, 0.06), (about_z, 0.0))


def hand_of(joints: Array) -> Array:
    """Forward kinematics by the product of six rotations."""
    place, turn = np.array([0, 0, 0.12]), np.eye(3)
    for angle, (about, length) in zip(joints, DRAWING, strict=True):
        turn = turn @ about(angle)
        place = place + turn @ [0, 0, length]
    return np.asarray(place + turn @ [0.04, 0, 0.08])


@pytest.fixture(scope="module")
def arm() -> Arm6Env:
    return Arm6Env()


def some_joints(arm: Arm6Env, count: int) -> Array:
    return np.random.default_rng(0).uniform(*arm.limits.T, (count, 6))


@pytest.mark.parametrize("observe", ["target", "joints"])
def test_gymnasiums_checker_has_no_complaint(observe: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(Arm6Env(observe=observe), skip_render_check=True)


def test_the_hand_is_where_the_drawing_says(arm: Arm6Env) -> None:
    for joints in some_joints(arm, 40):
        assert arm.place(joints) == pytest.approx(hand_of(joints), abs=1e-12)
    assert arm.place(np.zeros(6)) == pytest.approx([0.04, 0, 1.0])


def test_the_jacobian_is_the_slope_of_the_drawing(arm: Arm6Env) -> None:
    for joints in some_joints(arm, 10):
        arm.place(joints)
        slope = [(hand_of(joints + step) - hand_of(joints - step)) / 2e-6 for step in 1e-6 * np.eye(6)]
        assert arm.jacobian() == pytest.approx(np.array(slope).T, abs=1e-8)


def test_damped_least_squares_is_the_minimum_that_it_is_said_to_be(arm: Arm6Env) -> None:
    for joints in some_joints(arm, 10):
        arm.place(joints)
        jacobian, velocity = arm.jacobian(), np.array([0.3, -0.2, 0.5])
        stacked = np.concatenate([jacobian, 0.05 * np.eye(6)])
        wanted = np.linalg.lstsq(stacked, np.append(velocity, np.zeros(6)), rcond=None)[0]
        assert _arm6_expert.damped(jacobian, velocity, damping=0.05) == pytest.approx(wanted, abs=1e-10)


def test_the_expert_points_at_the_target_and_slows_down_as_a_whole(arm: Arm6Env) -> None:
    arm.reset(seed=3)
    asked = _arm6_expert.act(arm).astype(np.float64)
    way = arm.target - arm.hand
    moved = arm.jacobian() @ asked * SPEED
    assert moved @ way / np.linalg.norm(moved) / np.linalg.norm(way) > 0.99
    assert np.abs(asked).max() <= 1.0


def test_an_episode_is_a_function_of_its_seed_and_its_target_can_be_reached(arm: Arm6Env) -> None:
    other = Arm6Env()
    for seed in range(30):
        seen, _ = arm.reset(seed=seed)
        assert np.array_equal(seen, other.reset(seed=seed)[0])
        target, start = arm.target, arm.hand
        assert target[2] >= 0.08
        assert np.hypot(*target[:2]) >= 0.25
        assert np.linalg.norm(target - start) >= 0.15
        assert np.abs(arm.joints - HOME).max() <= 0.5
        assert seen == pytest.approx(np.concatenate([arm.joints, np.zeros(6), target, target - start]), abs=1e-6)
    assert not np.array_equal(arm.reset(seed=1)[0], arm.reset(seed=2)[0])


def test_gravity_is_compensated_and_the_servos_follow(arm: Arm6Env) -> None:
    arm.reset(seed=0)
    before = arm.joints
    for _ in range(_arm6_env.STEPS):
        *_, truncated, info = arm.step(np.zeros(6, np.float32))
    assert truncated
    assert arm.joints == pytest.approx(before, abs=1e-6)
    arm.reset(seed=0)
    for _ in range(10):
        seen, *_ = arm.step(np.array([0.5, 0, 0, 0, 0, -3.0], np.float32))
    assert seen[6] == pytest.approx(0.5 * SPEED, rel=0.1)
    assert seen[11] == pytest.approx(-SPEED, rel=0.1)  # cut off at 1
    assert not info["floor"]


def test_links_meet_the_floor() -> None:
    arm = Arm6Env()
    arm.reset(options={"joints": [0, 1.4, 0.2, 0, 0, 0], "target": [0.5, 0, 0.1]})
    touched = []
    for _ in range(10):
        *_, info = arm.step(np.array([0, 1, 0, 0, 0, 0], np.float32))
        touched.append(info["floor"])
        assert arm.hand[2] > -0.03
    assert any(touched)
    assert not touched[0]


def test_what_cannot_be_asked_is_refused(arm: Arm6Env) -> None:
    arm.reset(seed=0)
    with pytest.raises(ArmError, match=r"\(6,\) finite numbers"):
        arm.step(np.zeros(5, np.float32))
    with pytest.raises(ArmError, match="finite"):
        arm.step(np.full(6, np.nan, np.float32))
    for _ in range(_arm6_env.STEPS):
        arm.step(np.zeros(6, np.float32))
    with pytest.raises(ArmError, match="reset first"):
        arm.step(np.zeros(6, np.float32))
    with pytest.raises(ArmError, match="within their ranges"):
        arm.reset(options={"joints": [0, 0, -1, 0, 0, 0]})
    with pytest.raises(ArmError, match="none above 1"):
        arm.reset(options={"target": [400, 0, 300]})
    with pytest.raises(ArmError, match="traget"):
        arm.reset(options={"traget": [0.4, 0, 0.3]})
    with pytest.raises(ArmError, match="observe='pixels'"):
        Arm6Env(observe="pixels")  # type: ignore[arg-type]


def test_eight_side_by_side_are_eight_alone() -> None:
    envs, rng = vector(8), np.random.default_rng(0)
    seen, _ = envs.reset(seed=list(range(8)))
    assert seen.shape == (8, 18)
    actions = rng.uniform(-1, 1, (5, 8, 6)).astype(np.float32)
    for step in actions:
        seen, rewards, *_ = envs.step(step)
    for lane in (0, 5):
        alone = Arm6Env()
        alone.reset(seed=lane)
        for step in actions:
            mine, reward, *_ = alone.step(step[lane])
        assert np.array_equal(mine, seen[lane])
        assert reward == rewards[lane]
    envs.close()


def ended(mode: AutoresetMode) -> tuple[SyncVectorEnv, Array, Any]:
    """Three lanes, and what their last step returns."""
    envs = SyncVectorEnv([Arm6Env] * 3, autoreset_mode=mode)
    envs.reset(seed=[1, 2, 3])
    for _ in range(50):
        seen, *told = envs.step(np.zeros((3, 6), np.float32))
    assert told[2].all()
    assert not told[1].any()
    return envs, np.array(seen), told


def first_targets(episode: int) -> Array:
    """Of the episodes of the seeds 1, 2, 3: the first ones, or those that are drawn after them."""
    targets = []
    for number in (1, 2, 3):
        arm = Arm6Env()
        arm.reset(seed=number)
        for _ in range(episode):
            arm.reset()
        targets.append(arm.target)
    return np.array(targets, dtype=np.float32)


def test_lanes_of_ours_wait_for_a_reset_by_hand() -> None:
    envs, seen, _ = ended(AutoresetMode.DISABLED)
    assert np.array_equal(seen[:, 12:15], first_targets(0))  # of the episode that ended, not of another
    with pytest.raises((AssertionError, ArmError), match=r"autoreset|without an episode"):  # gymnasium's, or ours
        envs.step(np.zeros((3, 6), np.float32))
    envs.close()
    envs = vector(3)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    envs.reset(seed=[1, 2, 3])
    again, _ = envs.reset(options={"reset_mask": np.array([True, False, True])})
    assert np.array_equal(again[:, 12:15], np.where([[1], [0], [1]], first_targets(1), first_targets(0)))
    envs.close()


def test_the_other_ways_of_gymnasium_to_reset_work_too() -> None:
    envs, seen, _ = ended(AutoresetMode.NEXT_STEP)
    assert np.array_equal(seen[:, 12:15], first_targets(0))
    seen, rewards, terminated, truncated, _ = envs.step(np.ones((3, 6), np.float32))
    assert np.array_equal(seen[:, 12:15], first_targets(1))
    assert not np.any([rewards, terminated, truncated])
    assert not seen[:, 6:12].any()  # the action was not played: nothing moves yet
    envs.close()
    envs, seen, told = ended(AutoresetMode.SAME_STEP)
    assert np.array_equal(seen[:, 12:15], first_targets(1))
    assert np.array_equal([last[12:15] for last in told[3]["final_obs"]], first_targets(0))
    envs.close()


def test_to_pass_by_is_no_success() -> None:
    def policy(_: Any, arms: Any) -> NDArray[np.float32]:
        """The expert, and in the last steps away from the target."""
        policy.step += 1  # type: ignore[attr-defined]
        sign = 1 if policy.step % 50 < 44 else -1  # type: ignore[attr-defined]
        return np.stack([_arm6_expert.act(arm) * sign for arm in arms]) + np.float32(0.3 * (sign < 0))

    policy.step = -1  # type: ignore[attr-defined]
    played = play(policy, range(3))
    assert played.hands.shape == (3, 51, 3)
    passed = played.distances.min(axis=1) <= 0.02
    assert passed.any()
    assert not played.reached.any()
    assert played.final == pytest.approx(np.linalg.norm(played.hands[:, -1] - played.targets, axis=1))
    with pytest.raises(ArmError, match=r"\(8, 6\)"):
        play(lambda seen, arms: np.zeros((8, 5), np.float32), [0])


def test_a_film_is_a_strip_and_a_gif(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Array] = []

    def drawn(arm: Arm6Env) -> NDArray[np.uint8]:
        shown.append(arm.hand)
        return np.full((10, 10, 3), 10 * len(shown), np.uint8)

    monkeypatch.setattr(Arm6Env, "render", drawn)
    joints = np.linspace(HOME, HOME + 0.3, 7)
    np.savez(tmp_path / "episode.npz", joints=joints, target=[0.4, 0, 0.4], steps=[0, 3, 6])
    names = [str(tmp_path / name) for name in ("episode.npz", "strip.png", "film.gif")]
    _arm6_film.main(names)
    from PIL import Image

    assert Image.open(names[1]).size == (30, 10)
    assert Image.open(names[2]).n_frames == 4
    assert [hand_of(joints[step]).tolist() for step in (0, 2, 3, 4, 6)] == pytest.approx(np.array(shown), abs=1e-12)


def test_without_a_renderer_there_is_a_reason(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failed:
        returncode, stderr = 1, "Traceback\nno GL here"

    monkeypatch.setattr(_arm6_film.subprocess, "run", lambda *_, **__: Failed)
    said = _arm6_film.render(np.zeros((2, 6)), np.zeros(3), [0, 1], tmp_path)
    assert said is not None
    assert "egl: no GL here" in said
    assert "osmesa: no GL here" in said
    assert list(tmp_path.iterdir()) == []
