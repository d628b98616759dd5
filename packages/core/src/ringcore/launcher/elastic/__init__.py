"""Elastic jobs: processes come and go while they train.

Each layer of the supervisor is a file: who is there and what they are told (`ranks`), starting processes (`starting`),
who meets and who joins (`epochs`), who is lost (`losses`), hosts and orders from outside (`orders`), the job's end
(`ending`). `places`, `joining`, `witness` and `discovery` know no supervisor.
"""
