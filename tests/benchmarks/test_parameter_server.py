"""The comparison with parameter servers trains with every system to the weights of one process."""

from __future__ import annotations

from pathlib import Path

from parameter_server import measure
from support.namespaces import processes_of


def test_a_pair_of_workers_trains_with_ringcore_and_with_servers(tmp_path: Path) -> None:
    key_file = measure.write_key(tmp_path / "key")
    with measure.hosts_of(2) as hosts:
        # `train` compares the weights.
        for system, machines in (("ringcore", 2), ("1:1 servers", 4)):
            found = measure.train(hosts, system, 2, key_file, steps=1)
            assert found["machines"] == machines
            assert len(found["step_ms"]) == 1
        assert [process for host in hosts for process in processes_of(host)] == []
