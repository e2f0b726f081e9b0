"""Every number of the pipeline lab: exact ones to the printed digits, losses within what their prediction allows."""

from __future__ import annotations

import math

import pytest
import torch

from gradledger.recipes import _lab_pipeline as lab


@pytest.fixture(scope="module")
def data() -> lab.Data:
    return lab.make_data()


@pytest.fixture(scope="module")
def shuffled(data: lab.Data) -> lab.Trained:
    return lab.train(data, shuffle=True)


def test_the_baseline_gives_the_scale(data: lab.Data, shuffled: lab.Trained) -> None:
    assert round(data.baseline, 6) == 1.520677
    assert shuffled.validation < 0.05
    assert shuffled.validation < data.baseline / 100
    assert shuffled.validation <= 0.0083 * 1.1


def test_order_matters_and_the_control_shows_that_it_is_the_order(data: lab.Data, shuffled: lab.Trained) -> None:
    control = lab.train(data, shuffle=False)
    by_first_joint = lab.train(data, shuffle=False, by_first_joint=True)
    assert control.validation == pytest.approx(shuffled.validation, rel=0.2)
    assert by_first_joint.validation > 3 * shuffled.validation
    assert 1.0 < by_first_joint.validation / by_first_joint.train < 1.1  # it fits neither: underfitting


def test_a_clear_behind_the_backward_trains_nothing(data: lab.Data) -> None:
    told = lab.train(data, shuffle=True, epochs=5, clear="after backward")
    assert [round(loss, 6) for loss in told.losses] == [3.348493] * 5
    assert told.gradients_at_step == (False, False, False)  # None, not zero


def test_a_head_that_came_after_the_optimizer(data: lab.Data) -> None:
    told = lab.early_optimizer(data)
    assert round(told.pop("h4.head_grad_norm"), 4) == 46.5187
    assert told == {"h4.head_unchanged": True, "h4.head_in_optimizer": False, "h4.body_in_optimizer": True}


def test_who_owns_the_order(data: lab.Data) -> None:
    assert lab.orders(data) == {
        "order.same_seed_same": True,
        "order.other_seed_same": False,
        "order.unshuffled_ignores_seed": True,
    }


def test_a_cosine_stepped_per_batch_climbs_again() -> None:
    rates = lab.stepped_per_batch()
    assert rates[100] == pytest.approx(rates[0] / 2)
    assert rates[200] == pytest.approx(0.0, abs=1e-12)
    assert rates[400] == pytest.approx(rates[0])


def test_the_map_can_be_inverted_where_the_lab_draws(data: lab.Data) -> None:
    joints = torch.cat([data.train_joints, data.validation_joints])
    assert float((lab.inverse_kinematics(lab.forward_kinematics(joints)) - joints).abs().max()) <= 2e-6
    double = joints.double()
    determinants = lab.determinant(double)
    assert math.floor(float(determinants.min()) * 1000) / 1000 == 0.149
    assert float(determinants.max()) == pytest.approx(1.0, abs=1e-4)
    jacobians = torch.func.vmap(torch.func.jacrev(lab.forward_kinematics))(double[:100])
    torch.testing.assert_close(torch.linalg.det(jacobians), determinants[:100], rtol=0, atol=1e-12)
