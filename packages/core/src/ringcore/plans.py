"""Plans of one's own: `register` a function that makes them; `Builder` writes, `Plan` reads and checks them."""

from ringcore.job.generators import Outcome, register, report
from ringcore.planning import Builder, Chunk, Generator, Plan, Point, Program, Request

__all__ = ["Builder", "Chunk", "Generator", "Outcome", "Plan", "Point", "Program", "Request", "register", "report"]
