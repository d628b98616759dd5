"""Starts the ranks of a job on one or several hosts and looks after them until all have ended.

Nothing is imported here: the launcher runs on every host, and its start is part of every job's time.
The modules, from the bottom up:

    _loop        file descriptors, timers and signals of a process that waits for many things
    _frames      messages on a byte stream, between the launcher and its agents
    _process     one rank's process: how it starts, and how it surely ends
    _guard       ends the ranks when the launcher itself was killed
    _job         what an agent has to know to start its host's ranks
    agent        starts and watches the ranks of one host: in the launcher, or at the far end of ssh
    _remote      the launcher's end of that ssh connection
    _hosts       host lists, and which rank runs where
    _options     the command line; _config reads it from a file
    _output      what ranks print: lines, prefixes, colours, log files
    _placed      the launcher's end of the connections of agents that a scheduler has started
    _last_words  holds back what ranks print when they fail
    _cut         what of a traceback is left in it
    _summary     which rank failed first, and why
    _supervisor  the whole job: start, signals, failure, exit code
    main         the command
    outcomes     what became of a function on a rank
    api          ringcore.run: the same from Python; worker is its other end in each rank
    external     for schedulers that start processes themselves
"""
