"""A real Ray cluster of two nodes on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import ray
from ray.cluster_utils import Cluster

NODE = {"num_cpus": 1, "object_store_memory": 80 << 20}  # about the least that Ray takes


@contextmanager
def two_nodes() -> Iterator[SimpleNamespace]:
    """A cluster that this process has joined: `cluster` and its `second` node."""
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    second = cluster.add_node(**NODE)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    yield SimpleNamespace(cluster=cluster, second=second)
    ray.shutdown()
    cluster.shutdown()
