"""What a step minimises: a model, the mean loss of a batch, its preparation."""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax

# The global batch, see `data.pipeline`, with what `prepare_batch` adds.
Batch = dict[str, jax.Array]
Metrics = dict[str, jax.Array]
# `(params, batch, key) -> (loss, metrics)`: the mean of the loss over the rows,
# float32 [], and means of other numbers by name, each float32 []. `key` is that
# of dropout. A run logs their means over steps, as `train/NAME`; a step's own
# metrics have the names `loss` and those of `step.COUNTS` and `step.SIZES`.
MeanLoss = Callable[[Any, Batch, jax.Array], tuple[jax.Array, Metrics]]
# `(batch, step) -> batch`, traced at the start of a step.
PrepareBatch = Callable[[Batch, jax.Array], Batch]


class Objective(NamedTuple):
  """What a step minimises.

  It is also built for plans and evaluations, so building it reads no file. An
  array that a function closes over becomes a constant of the compiled step.

  Attributes:
    model: whose parameters the loss takes.
    mean_loss: see `MeanLoss`. It must be a mean of what rows give by
      themselves: it is averaged over devices and micro-batches of equal size.
    prepare_batch: adds what is drawn for a batch; None for nothing.
    teacher: a frozen model, whose logits the loss reads in the batch, see
      `distillation`; None for none.
  """

  model: nn.Module
  mean_loss: MeanLoss
  prepare_batch: PrepareBatch | None = None
  teacher: nn.Module | None = None
