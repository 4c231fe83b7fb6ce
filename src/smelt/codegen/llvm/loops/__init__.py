"""Forms of a row: its strips, pieces and interior, several rows abreast, short rows as one run."""
