"""Demo: semantic search over the documentation of your own Python.

`python -m demo` reads every docstring of the standard library, embeds them
with a real sentence encoder written as ordinary array code, races that one function under NumPy,
PyTorch (eager and compiled) and Smelt, and answers questions. From the text to the answer:

    corpus      every docstring of the running interpreter
    tokenise    texts to batches of token numbers of similar length
    weights     the network's parameters, from the package that contains them
    minilm      the network, written once in the array API's names
    torch_model the same network for PyTorch, to be raced
    engines     the table of engines that can run it
    worker      one engine in a process of its own
    race        starts workers, alternates them, collects their measurements
    search      nearest passages to a question
    main        the command, with progress bar and table

>>> from demo.search import QUESTIONS
>>> "read a csv file" in QUESTIONS
True
"""
