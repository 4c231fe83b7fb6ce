"""One operation on lanes: scalar operators, index expressions and folds as instructions."""
