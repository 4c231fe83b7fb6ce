"""Define every operator once, as a table row: scalar operators, tensor operators and monoids."""
