"""Smelt's main job: semantic search over the documentation of your own Python.

`python -m smelt.demo` (or `smelt demo`) reads every docstring of the standard library, embeds
them with a real sentence encoder written as ordinary array code, races that one function under
NumPy, PyTorch (eager and compiled) and Smelt, and answers questions. From the text to the answer:

    corpus      every docstring of the running interpreter
    tokenise    texts to batches of token numbers of like length
    weights     the network's parameters, from the package that carries them
    minilm      the network, in the array API's names: the one place it is written
    torch_model the same network for PyTorch, to be raced
    engines     who can run it: a table to which one row adds an engine
    worker      one engine in a process of its own
    race        starts workers, gives them turns, collects what they measured
    search      nearest passages to a question
    main        the whole, with progress bar and table

>>> from smelt.demo.search import QUESTIONS
>>> "read a csv file" in QUESTIONS
True
"""
