"""The 6-joint arm as a gymnasium environment: bring the hand to a target and keep it there.

Axis letters: E environments, T steps, O observation, A = 6 action. Angles rad, lengths m, 20 steps a second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import gymnasium
import mujoco  # type: ignore[import-untyped,unused-ignore]
import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradledger.core.errors import GradledgerError

MODEL = Path(__file__).parent / "models" / "arm6.xml"
JOINTS = ("yaw", "shoulder", "elbow", "forearm_roll", "wrist", "tool_roll")
LINKS = ("turret", "upper", "fore", "roll", "wrist", "tool")
HOME = np.array([0.0, 0.3, 1.2, 0.0, 0.6, 0.0])  # bent, the hand in front
SPEED = 2.0  # rad/s of a joint at an action of 1
HERTZ, STEPS = 20, 50  # control steps a second, and in an episode
NEAR_M = 0.02  # the target is reached within that
SPREAD = 0.5  # rad: each joint begins that near to HOME
# Targets: where the hand is with joints from this share of their ranges, if that is high and far enough.
SHARE, LOWEST_M, NEAREST_M, AWAY_M = 0.8, 0.08, 0.25, 0.15
YAW = 1.9  # rad: the turret turns no farther than that for a target; the arm can still lean back over it
FARTHEST_M = 1.0  # of a coordinate of a target; the hand gets no farther than that from the base
TRIES = 1000

Observe = Literal["target", "joints"]
WIDTHS: dict[str, int] = {"target": 18, "joints": 6}
Array = NDArray[np.float64]


class ArmError(GradledgerError):
    """Something that the arm cannot be asked for."""

    slug = "arm6"


def load() -> mujoco.MjModel:
    """The arm, compiled."""
    return mujoco.MjModel.from_xml_string(MODEL.read_text(encoding="utf-8"))


class Arm6Env(gymnasium.Env[NDArray[np.float32], NDArray[np.float32]]):
    """50 steps towards one target; never terminated, truncated at the end.

    Observation (18,) float32 with observe="target": joints (6) rad, their speeds (6) rad/s, the target (3) m, and the
    way that is left from the hand to it (3) m, in the frame of the base. (6,) joints alone with observe="joints".

    Action (6,) float32 in [-1, 1]: the speed that each joint's servo is asked for, in units of SPEED; cut off outside.

    Reward: minus the distance from hand to target in m, after the step. info: `distance` in m, `reached` (within
    NEAR_M), `floor` (a link touches the floor).

    `reset(options={"joints": (6,), "target": (3,)})` sets what is given, and draws the rest.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": HERTZ}  # noqa: RUF012

    def __init__(self, *, observe: Observe = "target", render_mode: str | None = None, size: int = 320) -> None:
        """Make one.

        Args:
            observe: what an observation holds. render_mode: None or "rgb_array". size: pixels of a side of a picture.

        Raises:
            ArmError: another value of either.
        """
        if observe not in WIDTHS or render_mode not in (None, "rgb_array"):
            raise _refused(
                f"observe={observe!r}, render_mode={render_mode!r}",
                "observe of target or joints, render_mode of None or rgb_array",
                "correct the argument",
            )
        self.render_mode, self._observe, self._size = render_mode, observe, size
        self.model = load()
        self.data = mujoco.MjData(self.model)
        self._hand = mujoco.mj_name2id(self.model, mujoco.mjtObj.mjOBJ_SITE, "hand")
        self._target = mujoco.mj_name2id(self.model, mujoco.mjtObj.mjOBJ_SITE, "target")
        self.limits: Array = self.model.jnt_range.copy()  # (6, 2) rad
        self._substeps = round(1.0 / (HERTZ * self.model.opt.timestep))
        self._steps = STEPS  # none is left before a reset
        self._renderer: Any = None
        high = np.repeat([2 * np.pi, 10 * SPEED, FARTHEST_M, 2 * FARTHEST_M], [6, 6, 3, 3])[: WIDTHS[observe]]
        self.observation_space = gymnasium.spaces.Box(-high.astype(np.float32), high.astype(np.float32))
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (len(JOINTS),), np.float32)

    @property
    def hand(self) -> Array:
        """(3,) m, where the hand is."""
        return np.array(self.data.site_xpos[self._hand])

    @property
    def target(self) -> Array:
        """(3,) m."""
        return np.array(self.model.site_pos[self._target])

    @property
    def joints(self) -> Array:
        """(6,) rad."""
        return np.array(self.data.qpos)

    def jacobian(self) -> Array:
        """(3, 6): how the hand moves, m/rad, with each joint."""
        found = np.zeros((3, self.model.nv))
        mujoco.mj_jacSite(self.model, self.data, found, None, self._hand)
        return found

    def place(self, joints: ArrayLike) -> Array:
        """Put the arm at rest with these joints, (6,) rad; returns where its hand then is, (3,) m."""
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[:] = joints
        mujoco.mj_forward(self.model, self.data)
        return self.hand

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """A start near HOME and a target that the arm can reach, both a function of the seed.

        Raises:
            ArmError: an option that is not known, or joints outside their ranges, or values that are not finite.
        """
        super().reset(seed=seed)
        given = self._given(options or {})
        start = np.clip(HOME + self.np_random.uniform(-SPREAD, SPREAD, len(JOINTS)), *self.limits.T)
        start = given.get("joints", start)
        target = given.get("target")
        self.model.site_pos[self._target] = self._drawn(self.place(start)) if target is None else target
        self.place(start)
        self._steps = 0
        return self._seen(), self._info()

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """A twentieth of a second.

        Raises:
            ArmError: an action that is not six finite numbers, or a step after the last one.
        """
        asked = np.asarray(action, dtype=np.float64)
        if asked.shape != (len(JOINTS),) or not np.isfinite(asked).all():
            raise _refused(f"an action {asked.tolist()}", "(6,) finite numbers", "look at the policy")
        if self._steps >= STEPS:
            raise _refused("a step without an episode", f"reset first, then {STEPS} steps", "reset the environment")
        self.data.ctrl[:] = np.clip(asked, -1.0, 1.0) * SPEED
        mujoco.mj_step(self.model, self.data, self._substeps)
        mujoco.mj_forward(self.model, self.data)  # or the hand would be where it was one substep ago
        self._steps += 1
        info = self._info()
        return self._seen(), -info["distance"], False, self._steps == STEPS, info

    def render(self) -> Any:
        """(size, size, 3) bytes, from the side; None without a render mode."""
        if self.render_mode is None:
            return None
        if self._renderer is None:
            self._renderer = mujoco.Renderer(self.model, self._size, self._size)
        self._renderer.update_scene(self.data, "side")
        return self._renderer.render()

    def close(self) -> None:
        """Give the renderer back."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def _seen(self) -> NDArray[np.float32]:
        if self._observe == "joints":
            return np.asarray(self.data.qpos, dtype=np.float32)
        parts = [self.data.qpos, self.data.qvel, self.target, self.target - self.hand]
        return np.concatenate(parts).astype(np.float32)

    def _info(self) -> dict[str, Any]:
        distance = float(np.linalg.norm(self.target - self.hand))
        return {"distance": distance, "reached": distance <= NEAR_M, "floor": bool(self.data.ncon)}

    def _drawn(self, hand: Array) -> Array:
        """A target that some joints within their ranges reach, not too near to where the hand is."""
        middle, half = self.limits.mean(axis=1), np.diff(self.limits, axis=1)[:, 0] / 2
        reach = np.append(YAW, SHARE * half[1:])
        for _ in range(TRIES):
            at = self.place(middle + self.np_random.uniform(-reach, reach))
            if at[2] >= LOWEST_M and np.hypot(at[0], at[1]) >= NEAREST_M and np.linalg.norm(at - hand) >= AWAY_M:
                return at
        raise _refused(f"no target in {TRIES} tries from a hand at {hand}", "one", "give options={'target': ...}")

    def _given(self, options: Mapping[str, Any]) -> dict[str, Array]:
        sizes = {"joints": len(JOINTS), "target": 3}
        given = {name: np.asarray(value, dtype=np.float64) for name, value in options.items()}
        wrong = [
            f"{name}={value.tolist()}"
            for name, value in given.items()
            if value.shape != (sizes.get(name),) or not np.isfinite(value).all()
        ]
        joints = given.get("joints")
        if not wrong and joints is not None and ((joints < self.limits[:, 0]) | (joints > self.limits[:, 1])).any():
            wrong = [f"joints={joints.tolist()}, ranges {self.limits.tolist()}"]
        if not wrong and "target" in given and np.abs(given["target"]).max() > FARTHEST_M:
            wrong = [f"target={given['target'].tolist()}"]
        if wrong:
            wanted = f"joints (6,) in rad within their ranges, target (3,) in m, none above {FARTHEST_M}"
            raise _refused("; ".join(wrong), wanted, "correct the options of reset")
        return given


def vector(count: int, *, observe: Observe = "target") -> gymnasium.vector.SyncVectorEnv:
    """E arms side by side, in one process; lanes that ended wait for a reset by hand (autoreset is DISABLED).

    Observations (E, 18) or (E, 6), actions (E, 6). One thread steps them all: a step of an arm takes some 0.1 ms, less
    than a message to another process.

    All lanes are truncated in the same step, the 50th. Their last observation is what that step returns; a step after
    it is refused, until `reset` (all lanes, or those of `options={"reset_mask": (E,)}`). So no row of a rollout is the
    first of another episode. Of the modes of gymnasium, NEXT_STEP would return such a row from the 51st step, with
    reward 0 and the action ignored; SAME_STEP from the 50th, with the last observation in `info["final_obs"]`. The arm
    works with each of them; whoever uses one has to leave these rows out.
    """
    return gymnasium.vector.SyncVectorEnv(
        [lambda: Arm6Env(observe=observe)] * count, autoreset_mode=gymnasium.vector.AutoresetMode.DISABLED
    )


def links(joints: Sequence[float] | Array) -> Array:
    """(6,) rad -> (8, 3) m: the base, the six joints from the floor up, the hand. For drawings."""
    env = Arm6Env()
    hand = env.place(joints)
    return np.concatenate([np.zeros((1, 3)), np.array([env.data.body(name).xpos for name in LINKS]), hand[None]])


def _refused(got: str, wanted: str, next_step: str) -> ArmError:
    return ArmError(got=got, wanted=wanted, where="recipes._arm6_env", next_step=next_step)
