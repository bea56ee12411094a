"""Fuzzing: many random cases, each in a process that may die of it.

    PYTHONPATH=tests python -m fuzz TARGET --cases 50000         from a seed that is told
    PYTHONPATH=tests python -m fuzz TARGET --seed 7 --only 123   one case again, in this process

A target is a module of this package with a function `case(random, folder) -> str`. It makes one case out of `random`
(the same seed and number give the same case), runs it, and returns how that ended, in a word. Errors that are allowed
are the target's to catch: what it raises is a failure, as are a process that dies and a case that takes too long.
`folder` is empty at first and its own.
"""
