"""The expert: damped least squares on MuJoCo's Jacobian. It sees the simulator's state; a policy does not.

A joint velocity that moves the hand straight to the target, damped where the arm is nearly stretched out (Wampler,
1986; Nakamura and Hanafusa, 1986), with a slow pull towards HOME in the directions that do not move the hand: three of
six.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gradledger.recipes._arm6_env import HOME, SPEED, Arm6Env

GAIN = 4.0  # 1/s: share of the way that the hand is asked to make in a second
FASTEST = 0.8  # m/s of the hand
DAMPING = 0.05  # m
POSTURE = 0.5  # 1/s: pull towards HOME
Array = NDArray[np.float64]


def damped(jacobian: Array, velocity: Array, *, damping: float = DAMPING) -> Array:
    """The joint velocity q, (A,), that minimises |J q - v|^2 + damping^2 |q|^2.

    Args:
        jacobian: (3, A) m/rad. velocity: (3,) m/s. damping: m, above 0: it bounds q where J loses rank.
    """
    square = jacobian @ jacobian.T + damping**2 * np.eye(len(jacobian))
    return np.asarray(jacobian.T @ np.linalg.solve(square, velocity))


def act(env: Arm6Env) -> NDArray[np.float32]:
    """(6,) action in [-1, 1] for the state that the arm is in; too fast a one is slowed down as a whole."""
    way = env.target - env.hand
    velocity = GAIN * way
    velocity *= min(1.0, FASTEST / max(float(np.linalg.norm(velocity)), 1e-12))
    jacobian = env.jacobian()
    posture = POSTURE * (HOME - env.joints)
    rest = posture - damped(jacobian, jacobian @ posture)  # what of it does not move the hand
    asked = (damped(jacobian, velocity) + rest) / SPEED
    return (asked / max(1.0, float(np.abs(asked).max()))).astype(np.float32)
