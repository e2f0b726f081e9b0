"""PyTorch Geometric: a variational graph autoencoder (VGAE) with negative sampling and a link split."""

import random

import numpy
import torch
from _digest import digest
from torch_geometric.data import Data
from torch_geometric.nn import VGAE, GCNConv
from torch_geometric.transforms import RandomLinkSplit
from torch_geometric.utils import erdos_renyi_graph

random.seed(2)
numpy.random.seed(2)
torch.manual_seed(2)
torch.set_num_threads(1)
data = Data(x=torch.randn(80, 6), edge_index=erdos_renyi_graph(80, 0.08))
train, held_out, _ = RandomLinkSplit(num_val=0.1, num_test=0.1, is_undirected=True, split_labels=True, add_negative_train_samples=False)(data)


class Encoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = GCNConv(6, 16)
        self.mu = GCNConv(16, 4)
        self.logstd = GCNConv(16, 4)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.first(x, edges).relu()
        return self.mu(x, edges), self.logstd(x, edges)


model = VGAE(Encoder())
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(12):
    model.train()
    optimizer.zero_grad()
    z = model.encode(train.x, train.edge_index)
    loss = model.recon_loss(z, train.pos_edge_label_index) + (1 / train.num_nodes) * model.kl_loss()
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        z = model.encode(held_out.x, held_out.edge_index)
        model.recon_loss(z, held_out.pos_edge_label_index, held_out.neg_edge_label_index)
print(f"{loss.item():.5f}", digest(model))
