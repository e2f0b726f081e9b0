"""PyTorch Geometric: a two-layer GCN on a random graph with train and validation masks, after the library's tutorial."""

import random

import numpy
import torch
import torch.nn.functional as F
from _digest import digest
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv
from torch_geometric.utils import erdos_renyi_graph

random.seed(1)
numpy.random.seed(1)
torch.manual_seed(1)
torch.set_num_threads(1)
edges = erdos_renyi_graph(120, 0.05)
x = torch.randn(120, 8)
train_mask = torch.rand(120) < 0.6
data = Data(x=x, edge_index=edges, y=(x[:, 0] > 0).long(), train_mask=train_mask, test_mask=~train_mask)


class Gcn(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = GCNConv(8, 16)
        self.second = GCNConv(16, 2)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        x = F.dropout(self.first(x, edges).relu(), training=self.training)
        return self.second(x, edges)


model = Gcn()
optimizer = torch.optim.Adam(
    [
        dict(params=model.first.parameters(), weight_decay=5e-4),
        dict(params=model.second.parameters(), weight_decay=0),
    ],
    lr=0.01,
)
for _ in range(12):
    model.train()
    optimizer.zero_grad()
    loss = F.cross_entropy(model(data.x, data.edge_index)[data.train_mask], data.y[data.train_mask])
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        right = (model(data.x, data.edge_index).argmax(-1) == data.y)[data.test_mask].float().mean()
print(f"{loss.item():.5f} {float(right):.3f}", digest(model))
