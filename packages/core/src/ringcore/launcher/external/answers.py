"""How it is said that an agent has ended: by its exit code, and by the zygote to whoever waits for it."""

# Its rank has ended badly, and the launcher has heard of that: an elastic job may want another one.
CODE_RANK_FAILED = 3
RANK_FAILED = b"\1"
# Anything else.
ENDED = b"\0"
