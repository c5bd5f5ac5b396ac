"""The paper (arXiv:2010.11929): its numbers, to put ours beside them."""
