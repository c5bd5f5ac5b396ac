"""Split expressions: TFDS's slicing syntax, for every data source.

https://www.tensorflow.org/datasets/splits describes it: `train`,
`train[:98%]`, `train[-100:]+validation`, `all`. TFDS itself does the parsing
and the rounding, so that an expression selects here what it selects there.

Beyond it, `shuffled(EXPRESSION)` and `shuffled(EXPRESSION, seed=N)` are its
records in a fixed pseudo-random order, which is sliced in the same way:
`shuffled(train)[:10%]` is a random tenth, part of every longer such slice, and
has nothing of `shuffled(train)[98%:]`. The order is a function of the seed (0,
if not given) and of the number of records (`permutation.py`).
"""

import dataclasses
import functools
import re
from collections.abc import Mapping

import tensorflow_datasets as tfds

from vit_jax.data import permutation
from vit_jax.data.selection import Range, Selection, Shuffled
from vit_jax.runtime import printable

_SHUFFLED = re.compile(r'shuffled\s*\((.*)\)\s*(\[[^\[\]]*\])?', re.DOTALL)
_SEED = re.compile(r'(.*),\s*seed\s*=\s*(\d+)\s*', re.DOTALL)
_FORMS = (
  'the forms are NAME, NAME[A:B], shuffled(EXPRESSION),'
  ' shuffled(EXPRESSION)[A:B], shuffled(EXPRESSION, seed=N)[A:B], and sums of'
  ' them'
)
# Stand for the size of a data set that is not on this machine: two parts are
# disjoint if they are at each of these at which both exist. Close to each
# other, as `train[:200]` and `train[80%:]` share examples below 250 only.
_SIZES = sorted({int(1.05**n) for n in range(15, 430)})


@dataclasses.dataclass(frozen=True)
class _Size:
  """The part of `tfds.core.SplitInfo` that slicing reads."""

  num_examples: int

  @property
  def shard_lengths(self) -> list[int]:
    raise ValueError(
      "the 'shard' unit is not supported; slice by examples or percent"
    )


def resolve(split: str, sizes: Mapping[str, int]) -> Selection:
  """Turns a split expression into ranges of records.

  Args:
    split: the expression, such as `train[:98%]+validation` or
      `shuffled(train)[:30_000_000]`.
    sizes: number of examples of each split.

  Returns:
    A part for each term of the sum, in its order; every range is non-empty and
    inside what it is taken from.

  Raises:
    ValueError: the expression is malformed, names an unknown split, leaves a
      split's bounds, slices by shard, or has a term that selects nothing.
  """
  listing = ', '.join(
    f'{printable.name(name)} ({size})' for name, size in sizes.items()
  )
  where = f'Split expression {split!r} over the splits {listing or "(none)"}'
  if 'all' in sizes:
    raise ValueError(
      f"{where}: a split cannot be called 'all', which stands for the sum of "
      'all splits; rename it.'
    )
  try:
    return _resolve(split, sizes)
  except (ValueError, NotImplementedError) as e:
    raise ValueError(f'{where}: {e}') from e


def names(split: str) -> set[str]:
  """The splits that an expression takes something from, known or not.

  Raises:
    ValueError: its parentheses do not match.
  """
  found = set()
  for term in _terms(split):
    if parsed := _parse_shuffled(term):
      found |= names(parsed[0])
    else:
      found.add(term.partition('[')[0].strip())
  return found


def may_overlap(one: str, other: str, sizes: Mapping[str, int]) -> bool:
  """Whether two expressions share a record; see `Selection.may_overlap`.

  Raises:
    ValueError: see `resolve`.
  """
  return resolve(one, sizes).may_overlap(resolve(other, sizes))


@functools.cache
def may_overlap_at_any_size(one: str, other: str) -> bool:
  """Whether two expressions share a record if nothing is known of the sizes.

  Also true for what exists at no size, as a malformed expression: it has not
  been shown to be disjoint.
  """
  try:
    both = names(one) | names(other)
  except ValueError:
    return True
  found = []
  for size in _SIZES:
    try:
      found.append(may_overlap(one, other, dict.fromkeys(both, size)))
    except ValueError:
      continue  # One of them reaches beyond this size.
  return any(found) or not found


def _resolve(split: str, sizes: Mapping[str, int]) -> Selection:
  parts = []
  for term in _terms(split):
    if not (parsed := _parse_shuffled(term)):
      parts += _ranges(term, sizes)
      continue
    inner, seed, part = parsed
    inner = _resolve(inner, sizes)
    # The slice is TFDS's, of a split that has all of the inner records.
    [(_, start, stop)] = _ranges('shuffled' + part, {'shuffled': len(inner)})
    parts.append(Shuffled(inner, seed, start, stop))
  return Selection(tuple(parts))


def _ranges(term: str, sizes: Mapping[str, int]) -> list[Range]:
  """The ranges of a term that is not shuffled."""
  infos = {name: _Size(size) for name, size in sizes.items()}
  terms = tfds.core.ReadInstruction.from_spec(term).to_absolute(infos)
  parts = []
  for term in terms:
    # TFDS writes None for an open end.
    start = term.from_ or 0
    stop = sizes[term.splitname] if term.to is None else term.to
    if start >= stop:
      raise ValueError(f'{term.splitname}[{start}:{stop}] selects nothing.')
    parts.append(Range(term.splitname, start, stop))
  return parts


def _terms(split: str) -> list[str]:
  """The terms of a sum, stripped, those in parentheses as one."""
  terms, depth = [''], 0
  for character in split:
    depth += {'(': 1, ')': -1}.get(character, 0)
    if depth < 0:
      break
    if character == '+' and not depth:
      terms.append('')
    else:
      terms[-1] += character
  if depth:
    raise ValueError(f'the parentheses of {split!r} do not match; {_FORMS}')
  return [term.strip() for term in terms]


def _parse_shuffled(term: str) -> tuple[str, int, str] | None:
  """The expression, seed and slice of a shuffled term; None for another."""
  if '(' not in term:
    return None
  if not (found := _SHUFFLED.fullmatch(term)):
    raise ValueError(f'{term!r} is not understood; {_FORMS}')
  inner, part = found.groups()
  seed = 0
  if seeded := _SEED.fullmatch(inner):
    inner, seed = seeded[1], int(seeded[2])
  if seed >= permutation.SEEDS:
    raise ValueError(f'seed={seed} must be below 2**32.')
  return inner, seed, part or ''
