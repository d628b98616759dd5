"""Jobs that are not there: what training on so many ranks would take; see `simulate`."""

from ringcore.simulation.job import Agreement, CollectiveTime, Simulation, simulate
from ringcore.simulation.start import Start
from ringcore.simulation.values import Network

__all__ = ["Agreement", "CollectiveTime", "Network", "Simulation", "Start", "simulate"]
