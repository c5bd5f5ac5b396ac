"""Split expressions: TFDS's slicing syntax, for every data source.

https://www.tensorflow.org/datasets/splits describes the syntax: `train`,
`train[:98%]`, `train[-100:]+validation`, `all`. TFDS itself parses and rounds,
so that an expression selects the same records here and in TFDS. A name without
a split of exactly that name may differ in capitals.

In addition, `shuffled(EXPRESSION)` and `shuffled(EXPRESSION, seed=N)` put the
records of an expression into a fixed pseudo-random order, which can be sliced:
`shuffled(train)[:10%]` is a random tenth, part of every longer slice from the
start, and disjoint from `shuffled(train)[98%:]`. The order is a function of the
seed (default: 0) and of the number of records (`permutation.py`).
"""

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping

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
# Possible sizes of a data set that is not on this machine. Two parts count as
# disjoint if they are disjoint at each of these sizes at which both exist. The
# sizes are close to each other, because some parts overlap only in a narrow
# range: `train[:200]` and `train[80%:]` share examples only below 250.
_SIZES = sorted({int(1.05**n) for n in range(15, 430)})


@dataclasses.dataclass(frozen=True)
class _Size:
  """The attributes of `tfds.core.SplitInfo` that slicing reads."""

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
    A part for each term of the sum, in that order; every range is non-empty and
    within the records from which it is taken.

  Raises:
    ValueError: the expression is malformed, names an unknown split, leaves a
      split's bounds, slices by shard, or has a term that selects nothing.
  """
  listing = ', '.join(
    f'{printable.name(name)} ({size})' for name, size in sizes.items()
  )
  where = f'Split expression {split!r} over the splits {listing or "(none)"}'
  if 'all' in sizes:
    raise ValueError(f"{where}: 'all' means all splits; rename that split.")
  try:
    return _resolve(split, sizes)
  except (ValueError, NotImplementedError) as e:
    raise ValueError(f'{where}: {e}') from e


def names(split: str) -> set[str]:
  """Returns the names of the splits in an expression, known or not.

  Raises:
    ValueError: the expression's parentheses do not match.
  """
  found = set()
  for term in _terms(split):
    if parsed := _parse_shuffled(term):
      found |= names(parsed[0])
    else:
      found.add(term.partition('[')[0].strip())
  return found


def find(name: str, known: Iterable[str]) -> str | None:
  """Returns the split of that name, in capitals or not; None without one."""
  known = list(known)
  alike = [split for split in known if split.lower() == name.lower()]
  return name if name in known else alike[0] if len(alike) == 1 else None


@functools.cache
def may_overlap(one: str, other: str) -> bool:
  """Returns whether two expressions share records at some sizes of the splits.

  Also returns True if the expressions are valid at no size, as a malformed one,
  because nothing shows that they are disjoint.
  """
  try:
    both = names(one) | names(other)
  except ValueError:
    return True
  found = []
  for size in _SIZES:
    sizes = dict.fromkeys(both, size)
    try:
      found.append(resolve(one, sizes).shared(resolve(other, sizes)))
    except ValueError:
      continue  # An expression reaches beyond this size.
  return any(found) or not found


def _resolve(split: str, sizes: Mapping[str, int]) -> Selection:
  parts = []
  for term in _terms(split):
    if not (parsed := _parse_shuffled(term)):
      parts += _ranges(term, sizes)
      continue
    inner, seed, part = parsed
    inner = _resolve(inner, sizes)
    # TFDS slices a split that stands for all inner records.
    [(_, start, stop)] = _ranges('shuffled' + part, {'shuffled': len(inner)})
    parts.append(Shuffled(inner, seed, start, stop))
  return Selection(tuple(parts))


def _ranges(term: str, sizes: Mapping[str, int]) -> list[Range]:
  """Returns the ranges of a term that is not shuffled."""
  import tensorflow_datasets as tfds

  infos = {name: _Size(size) for name, size in sizes.items()}
  name = term.partition('[')[0].strip()
  if name != 'all' and (split := find(name, sizes)):
    term = term.replace(name, split, 1)
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
  """Returns the stripped terms of a sum; parentheses form one term."""
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
  """Returns the expression, seed and slice of a shuffled term, else None."""
  if '(' not in term:
    return None
  if not (found := _SHUFFLED.fullmatch(term)):
    raise ValueError(f'cannot parse {term!r}; {_FORMS}')
  inner, part = found.groups()
  seed = 0
  if seeded := _SEED.fullmatch(inner):
    inner, seed = seeded[1], int(seeded[2])
  if seed >= permutation.SEEDS:
    raise ValueError(f'seed={seed} must be below 2**32.')
  return inner, seed, part or ''
