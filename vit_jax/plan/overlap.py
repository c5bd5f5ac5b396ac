"""What part of asynchronous collectives computation hides.

A compiled program lists its instructions in the order in which the device
starts them. An asynchronous collective starts at one of them and has to be
complete at a later one. Meanwhile the device computes what stands in between.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from vit_jax.plan import collectives, hlo


@dataclasses.dataclass
class Overlap:
  """Follows the instructions of a computation.

  Collectives share the links, so a moment of computation hides only one.

  Attributes:
    rows: rows of an estimate, which grow while the instructions are followed.
      What is hidden is taken out of a collective's row.
    hidden: seconds of collectives that computation hid so far.
  """

  rows: list[Any]
  hidden: float = 0.0
  _seen: int = 0  # Number of rows that were looked at.
  _computed: float = 0.0  # Seconds of computation in them.
  _covering: float = 0.0  # Computation up to here hides something already.
  # Key of a collective -> (its row, seconds computed when it started).
  _started: dict[str, tuple[int, float]] = dataclasses.field(
    default_factory=dict
  )

  def follow(
    self, instruction: hlo.Instruction, inside: Sequence[hlo.Instruction]
  ) -> None:
    """Takes in the next instruction, after its rows were added.

    Args:
      instruction: the instruction.
      inside: the parts of a fusion, or the instruction itself.
    """
    starts = None
    for place in range(self._seen, len(self.rows)):
      if self.rows[place].op_class == 'collectives':
        starts = place if starts is None else starts
      else:
        self._computed += self.rows[place].seconds
    self._seen = len(self.rows)
    for key in collectives.asynchronous(instruction, inside):
      if starts is not None:
        self._started[key] = starts, self._computed
      elif key in self._started:
        self._hide(*self._started[key])

  def _hide(self, place: int, since: float) -> None:
    row = self.rows[place]
    begin = max(since, self._covering)
    found = max(0.0, min(row.seconds, self._computed - begin))
    self._covering = max(self._covering, begin + found)
    self.rows[place] = dataclasses.replace(row, seconds=row.seconds - found)
    self.hidden += found
