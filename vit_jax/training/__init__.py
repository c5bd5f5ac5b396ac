"""Training: the loop, what a step computes, and how a run starts."""
