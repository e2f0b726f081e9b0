"""Calls from the forward hook into other probes."""

from __future__ import annotations

import torch

from gradledger.ledger._session import Session


def scan_tree(session: Session, root: torch.nn.Module) -> None:
    """Look for unregistered tensors and modules in the tree of a module that is called."""
    from gradledger.ledger.probes import modules

    modules.scan_tree(session, root)


def statistics(session: Session, module: torch.nn.Module, root: torch.nn.Module) -> None:
    """A layer with running statistics ran in train mode."""
    from gradledger.ledger.probes import modes

    modes.statistics(session, module, root)
