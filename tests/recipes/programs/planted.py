"""The DQN recipe on CartPole with one fault planted: the first argument names it, the second is the run folder."""

import sys

from torch import nn

from gradledger.recipes import dqn_atari
from gradledger.recipes.dqn_atari import Run
from gradledger.rl import td_loss

fault, out = sys.argv[1:3]


class Planted(Run):
    def __init__(self, args):
        super().__init__(args)
        if fault == "no clear":
            self.optimizer.zero_grad = lambda set_to_none=True: None
        if fault == "target in the optimizer":
            self.target.model.requires_grad_(True)
            self.optimizer.add_param_group({"params": list(self.target.model.parameters())})
        if fault == "target copied into itself":
            model = self.target.model
            self.target.sync = lambda: model.load_state_dict(model.state_dict())
        if fault == "target is the online network":
            for mine, theirs in zip(self.target.model.parameters(), self.compute.parameters()):
                mine.data = theirs.data

    def update(self):
        if fault != "target with a graph":
            return super().update()
        batch = self.replay.sample(self.args.batch, self.rng["replay"])
        value = self.compute(batch.next_state).max(1).values
        target = batch.reward + batch.discount * value
        self.optimizer.zero_grad()
        td_loss(self.compute(batch.state), batch.action, target).backward()
        nn.utils.clip_grad_norm_(self.online.parameters(), self.args.clip)
        self.optimizer.step()
        self.counters.optimizer_step += 1


dqn_atari.Run = Planted
words = "--preset smoke --env CartPole-v1 --total-steps 900 --learning-starts 150 --target-sync 100 --log-every 900"
sys.exit(dqn_atari.main([*words.split(), "--eval-episodes", "1", "--engine", "autograd", "--out", out]))
