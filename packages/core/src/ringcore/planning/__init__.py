"""Plans that are written outside the engine: what they are, how they are built, read and written."""

from ringcore.planning.builder import Builder, Chunk, Point, Program
from ringcore.planning.plan import Plan
from ringcore.planning.request import Generator, Request

__all__ = ["Builder", "Chunk", "Generator", "Plan", "Point", "Program", "Request"]
