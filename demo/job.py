"""The demo without output: corpus, race, index, answers.

>>> Options(questions=("sort a list",)).races
False
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field

from demo import corpus, engines, race, search, tokenise, weights
from demo.corpus import Passage
from demo.search import Answer
from smelt.python.dataclass import dataclass

Watch = Callable[[str, int, int], None]
"""Called with the current step, the number of texts since the last call, and the total."""


@dataclass(frozen=True)
class Options:
    """Options of the demo."""

    questions: tuple[str, ...] = ()
    """Questions to answer; empty means `search.QUESTIONS`."""
    sample: int = 512
    """Texts that the engines race on."""
    turns: int = 2
    """How often each engine embeds the sample."""
    race: bool | None = None
    """Whether to race; None races unless questions were passed."""
    index: int | None = None
    """Passages to search; None is all of them with Smelt, the sample with NumPy."""
    engine: str | None = None
    """The engine that embeds the searched passages; None is Smelt, or NumPy if Smelt is
    unavailable."""
    answers: int = 3
    """Answers per question."""

    @property
    def races(self) -> bool:
        """Whether the engines race."""
        return not self.questions if self.race is None else self.race


@dataclass
class Outcome:
    """Results of the demo."""

    passages: int
    """Docstrings in the corpus."""
    raced: int
    """Texts of the race, 0 if there was none."""
    tokens: int
    """Tokens of the race's texts."""
    padding: float
    """Share of the race's batch positions that are padding."""
    results: list[race.Result] = field(default_factory=list[race.Result])
    indexed: int = 0
    """Passages searched."""
    indexer: race.Result | None = None
    """Measurements of embedding the searched passages."""
    answers: list[tuple[str, list[Answer]]] = field(default_factory=list[tuple[str, list[Answer]]])

    @property
    def succeeded(self) -> bool:
        """Whether every engine finished and agreed, and every question has answers.

        An engine that is not installed is no failure.
        """
        ran = [result for result in self.results if result.absent is None]
        return bool(self.answers) and all(r.failed is None and r.agrees for r in ran)


def run(options: Options, watch: Watch | None = None) -> Outcome:
    """Run the demo.

    Raises:
        MissingPackagesError: an optional package is not installed; nothing has run then.
        KeyError: `options.engine` is not the name of an engine.
        race.EngineFailedError: the engine of the index is unavailable or failed.
    """
    weights.require()
    passages = corpus.collect()
    sample = corpus.sample(passages, options.sample)
    outcome = Outcome(len(passages), 0, 0, 0.0)
    if options.races:
        _race(sample, options, outcome, watch)
    indexer = engines.by_name(options.engine) if options.engine else _default_engine(outcome)
    default_count = len(passages) if indexer.name == "smelt" else options.sample
    searched = corpus.sample(passages, default_count if options.index is None else options.index)
    _search(searched, indexer, options, outcome, watch)
    return outcome


def _race(
    sample: Sequence[Passage], options: Options, outcome: Outcome, watch: Watch | None
) -> None:
    batches = tokenise.make_batches(tokenise.tokenise([passage.searchable for passage in sample]))
    outcome.raced = len(sample)
    outcome.tokens = sum(int(batch.mask.sum()) for batch in batches)
    outcome.padding = tokenise.padding_share(batches)

    def progress(title: str, texts: int) -> None:
        if watch is not None:
            watch(f"race: {title}", texts, options.turns * len(sample))

    outcome.results = race.run(engines.ENGINES, batches, turns=options.turns, progress=progress)


def _default_engine(outcome: Outcome) -> engines.Engine:
    """Return Smelt, unless it is unavailable or has just failed."""
    failed = {result.name for result in outcome.results if result.failed is not None}
    smelt = engines.by_name("smelt")
    usable = smelt.absent() is None and smelt.name not in failed
    return smelt if usable else engines.by_name("numpy")


def _search(
    passages: Sequence[Passage],
    engine: engines.Engine,
    options: Options,
    outcome: Outcome,
    watch: Watch | None,
) -> None:
    """Embed passages and questions together, then rank."""
    questions = options.questions or search.QUESTIONS
    texts = [*(passage.searchable for passage in passages), *questions]
    batches = tokenise.make_batches(tokenise.tokenise(texts))

    def progress(title: str, done: int) -> None:
        if watch is not None:
            watch(f"index: {title}", done, len(texts))

    result = race.run([engine], batches, turns=1, describe=False, progress=progress)[0]
    why = result.absent or result.failed
    if result.embeddings is None:
        raise race.EngineFailedError(f"{engine.title} could not embed the passages: {why}")
    index = search.Index(passages, result.embeddings[: len(passages)])
    question_vectors = result.embeddings[len(passages) :]
    outcome.indexed, outcome.indexer = len(passages), result
    outcome.answers = [
        (question, index.nearest(vector, options.answers))
        for question, vector in zip(questions, question_vectors, strict=True)
    ]
