"""The block: what fits the budget, fenced as data, in words that a prompt can hold."""
