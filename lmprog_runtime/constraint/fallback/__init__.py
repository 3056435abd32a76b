"""The automaton and its masks in Python and numpy: used where no compiler was there, and the oracle of the C++ core."""
