"""What lies between hosts: told in a file, measured by a job, shown as a table and as a picture."""

from ringcore.network.read import read, read_file
from ringcore.network.topology import Host, Interface, Link, Topology

__all__ = ["Host", "Interface", "Link", "Topology", "read", "read_file"]
