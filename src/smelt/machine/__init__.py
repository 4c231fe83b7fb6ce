"""The machine model: facts about processors, and the sizes of blocks that follow from them."""
