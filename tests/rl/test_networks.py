"""Sizes of the Q-networks, block by block."""

from __future__ import annotations

import pytest
import torch

from gradledger.rl.errors import EnvError
from gradledger.rl.networks import DuelingHead, ValueHead, atari_q_network, mlp_q_network


@pytest.mark.parametrize("actions", [4, 6, 18])
def test_the_count_of_parameters(actions: int) -> None:
    net = atari_q_network(actions)
    assert sum(p.numel() for p in net.parameters()) == 1_684_128 + 513 * actions


def test_the_shapes_after_each_block() -> None:
    x, shapes = torch.randint(0, 256, (2, 4, 84, 84), dtype=torch.uint8), []
    for block in atari_q_network(6):
        x = block(x)
        shapes.append(tuple(x.shape[1:]))
    assert shapes == [(4, 84, 84), (32, 20, 20), (64, 9, 9), (64, 7, 7), (512,), (6,)]


def test_pixels_are_scaled_and_the_dtype_is_the_one_asked_for() -> None:
    net = atari_q_network(3, dtype=torch.float64)
    frames = torch.full((1, 4, 84, 84), 255, dtype=torch.uint8)
    assert torch.equal(net[0](frames), torch.ones(1, 4, 84, 84, dtype=torch.float64))
    assert net(frames).dtype == torch.float64


def test_a_chain_over_vectors() -> None:
    net = mlp_q_network(4, 2, hidden=(16, 8))
    assert [len(list(block.parameters())) for block in net] == [2, 2, 2]
    assert net(torch.zeros(5, 4)).shape == (5, 2)


def test_a_dueling_network_has_two_streams_of_the_usual_width() -> None:
    for actions in (4, 6, 18):
        net = atari_q_network(actions, dueling=True)
        assert sum(p.numel() for p in net.parameters()) == 3_290_785 + 513 * actions
    x = torch.randint(0, 256, (2, 4, 84, 84), dtype=torch.uint8)
    assert net(x).shape == (2, 18)
    small = mlp_q_network(4, 2, hidden=(16, 8), dueling=True)
    assert [tuple(parameter.shape) for parameter in small[1].parameters()] == [(16, 16), (16,)]


def test_a_dueling_head_is_the_value_and_what_is_better_than_the_mean() -> None:
    head = DuelingHead(4, 3).double()
    with torch.no_grad():
        head.value.weight.copy_(torch.tensor([[2.0, 1.0]]))
        head.value.bias.fill_(0.5)
        head.advantage.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]))
        head.advantage.bias.copy_(torch.tensor([0.0, 0.0, 3.0]))
    # value 2*1 + 1*2 + .5 = 4.5; advantages 6, 9, 3 with mean 6
    assert head(torch.tensor([[1.0, 2.0, 6.0, 9.0]], dtype=torch.float64)).tolist() == [[4.5, 7.5, 1.5]]
    # an error of one action moves the value of all: the derivative of q0 for the value's bias is one
    head(torch.ones(1, 4, dtype=torch.float64))[0, 0].backward()
    assert head.value.bias.grad.item() == 1
    assert head.advantage.bias.grad.tolist() == pytest.approx([2 / 3, -1 / 3, -1 / 3])


def test_sizes_of_nothing_are_refused() -> None:
    with pytest.raises(EnvError, match=r"hidden=\(\), dueling=True"):
        mlp_q_network(4, 2, hidden=(), dueling=True)
    with pytest.raises(EnvError, match="actions=0"):
        atari_q_network(0)
    with pytest.raises(EnvError, match=r"hidden=\(0,\)"):
        mlp_q_network(4, 2, hidden=(0,))


def test_he_weights_keep_what_differs_between_states_and_torch_weights_lose_it() -> None:
    """Spread of each block's output over states, as a share of that of the pixels; by the variance of its weights."""
    torch.manual_seed(0)
    frames = torch.randint(0, 256, (64, 4, 84, 84), dtype=torch.uint8)
    spread = {}
    for initial in ("torch", "he"):
        net = atari_q_network(6, initial=initial)
        x, of = frames, []
        with torch.no_grad():
            for block in net:
                x = block(x)
                of.append(x.std(0).mean().item())
        spread[initial] = of[-1] / of[0]
        for layer, gain in ((net[1][0], 2), (net[4][1], 2), (net[5], 1)):
            if initial == "he":
                inputs = layer.weight[0].numel()
                assert layer.weight.var().item() == pytest.approx(gain / inputs, rel=0.05)
                assert not layer.bias.any()
    assert spread["torch"] < 0.02
    assert spread["he"] > 0.2


def test_a_dueling_head_starts_as_the_layer_that_it_is() -> None:
    torch.manual_seed(0)
    head = atari_q_network(18, dueling=True, initial="he")[-1]
    assert head.advantage.weight.var().item() == pytest.approx(1 / 512, rel=0.1)
    small = mlp_q_network(400, 300, hidden=(300,), initial="he")
    assert small[0][0].weight.var().item() == pytest.approx(1 / 200, rel=0.05)
    assert small[1].weight.var().item() == pytest.approx(1 / 300, rel=0.05)


def test_weights_start_in_one_of_two_ways() -> None:
    with pytest.raises(EnvError, match="initial='xavier'"):
        atari_q_network(6, initial="xavier")


@pytest.mark.parametrize("dueling", [False, True])
def test_two_actions_that_bfloat16_cannot_tell_apart_are_told_apart(dueling: bool) -> None:
    """Values of 1 and 1 + 1/1024: in bfloat16 both are 1, and the first of equals would be played."""
    for net in (
        atari_q_network(2, dueling=dueling, dtype=torch.bfloat16),
        mlp_q_network(3, 2, hidden=(8,), dueling=dueling, dtype=torch.bfloat16),
    ):
        head = net[-1]
        assert isinstance(head, DuelingHead if dueling else ValueHead)
        biases = [head.value.bias, head.advantage.bias] if dueling else [head.bias]
        with torch.no_grad():
            for parameter in head.parameters():
                parameter.zero_()
            biases[0].fill_(1.0)
            biases[-1] += torch.tensor([0.0, 1 / 1024])
        x = torch.zeros(1, 4, 84, 84, dtype=torch.uint8) if len(net) > 3 else torch.zeros(1, 3, dtype=torch.bfloat16)
        values = net(x)
        assert values.dtype == torch.float32
        assert values.argmax().item() == 1
        assert values.bfloat16().unique().numel() == 1
        assert {parameter.dtype for block in net[:-1] for parameter in block.parameters()} == {torch.bfloat16}


def test_a_head_is_never_less_precise_than_the_network() -> None:
    assert {parameter.dtype for parameter in mlp_q_network(3, 2, dtype=torch.float64).parameters()} == {torch.float64}
    assert {parameter.dtype for parameter in mlp_q_network(3, 2).parameters()} == {torch.float32}
