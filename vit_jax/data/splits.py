"""Split expressions: TFDS's slicing syntax, for every data source.

https://www.tensorflow.org/datasets/splits describes it: `train`,
`train[:98%]`, `train[-100:]+validation`, `all`. TFDS itself does the parsing
and the rounding, so that an expression selects here what it selects there.
"""

import dataclasses
from collections.abc import Mapping

import tensorflow_datasets as tfds


@dataclasses.dataclass(frozen=True)
class _Size:
  """The part of `tfds.core.SplitInfo` that slicing reads."""

  num_examples: int

  @property
  def shard_lengths(self) -> list[int]:
    raise ValueError(
      "the 'shard' unit is not supported; slice by examples or percent"
    )


def resolve(split: str, sizes: Mapping[str, int]) -> list[tuple[str, int, int]]:
  """Turns a split expression into ranges of records.

  Args:
    split: the expression, such as `train[:98%]+validation`.
    sizes: number of examples of each split.

  Returns:
    A (split name, start, stop) for each term of the sum, in its order; every
    range is non-empty and inside its split.

  Raises:
    ValueError: the expression is malformed, names an unknown split, leaves a
      split's bounds, slices by shard, or has a term that selects nothing.
  """
  listing = ', '.join(f'{name} ({size})' for name, size in sizes.items())
  where = f'Split expression {split!r} over the splits {listing or "(none)"}'
  if 'all' in sizes:
    raise ValueError(
      f"{where}: a split cannot be called 'all', which stands for the sum of "
      'all splits; rename it.'
    )
  infos = {name: _Size(size) for name, size in sizes.items()}
  try:
    terms = tfds.core.ReadInstruction.from_spec(split).to_absolute(infos)
  except (ValueError, NotImplementedError) as e:
    raise ValueError(f'{where}: {e}') from e
  parts = []
  for term in terms:
    # TFDS writes None for an open end.
    start = term.from_ or 0
    stop = sizes[term.splitname] if term.to is None else term.to
    if start >= stop:
      raise ValueError(
        f'{where}: {term.splitname}[{start}:{stop}] selects nothing.'
      )
    parts.append((term.splitname, start, stop))
  return parts
