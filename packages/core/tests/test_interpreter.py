"""Sub-interpreters are refused, before anything of the engine is loaded in one."""

from __future__ import annotations

import subprocess
import sys

# `create`'s argument for one that shares the lock of the main interpreter, which may load any extension: mod_wsgi's.
PROGRAM = """
import sys
if sys.version_info >= (3, 13):
    import _interpreters as interpreters
    kinds = [("isolated",), ("legacy",)]
else:
    import _xxsubinterpreters as interpreters
    kinds = [(), ()]
import ringcore
ringcore.init()
IMPORT = '''
try:
    import ringcore.adapter
except ImportError as error:
    print(error, flush=True)
'''
for isolated, kind in zip((True, False), kinds):
    options = {} if kind else {"isolated": isolated}
    one = interpreters.create(*kind, **options)
    interpreters.run_string(one, IMPORT)
    interpreters.destroy(one)
print(ringcore.allreduce(bytearray(b"7"), op=ringcore.Sum)[0], flush=True)
"""


def test_a_sub_interpreter_is_refused_and_the_main_one_goes_on() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *refusals, value = done.stdout.splitlines()
    assert len(refusals) == 2
    for refusal in refusals:
        assert "this is a sub-interpreter. Remedy: " in refusal
    assert value == str(ord("7"))
