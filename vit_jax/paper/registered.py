"""Preregistration: what confirming runs must not change.

A set-up is chosen by looking at results, so the same results cannot confirm
anything. `reproduce --register` writes down the claims, their tests and the
config of each run, with a hash over all of them. `reproduce --confirm` then
runs exactly this, with seeds that were used for nothing else.
"""

import datetime
import hashlib
import json
import pathlib
from collections.abc import Iterable
from typing import Any

from vit_jax.paper import answers
from vit_jax.paper.item import Item
from vit_jax.runtime import json_text
from vit_jax.sweep import reading
from vit_jax.sweep.spec import Sweep
from vit_jax.workdir import files

FILE = pathlib.Path(__file__).with_name('registered_mini.json')
# Seeds count from a multiple of this: explorations from 0, each registration's
# from the next one, so that no seed is used twice. The first registration,
# whose tests were others, had 1000.
STEP = 1000
_FIRST = 2000
_METHOD = {
  'level': answers.LEVEL,
  'test': 'exact permutations of seeds, in both directions; yes needs all'
  ' tests, no needs one of them after Bonferroni; Holm over all claims',
}


def describe(
  described: Iterable[Item], sweep: Sweep, seeds: int
) -> dict[str, Any]:
  """Returns what a registration fixes of some items: name -> JSON.

  Args:
    described: the items.
    sweep: the runs of these items, with the seeds of confirming runs.
    seeds: pre-trainings of each mean.
  """
  claims = {
    f'claim {item.name}.{claim.key}': {
      what: [
        [round(weight, 6), mean.measure.name, mean.start.name]
        for weight, mean in sum_.terms
        if weight
      ]
      for what, sum_ in claim.contrasts.items()
    }
    for item in described
    for claim in item.asked('mini')
  }
  runs = {
    f'run {run.name}': _hash(reading.read_config(run).to_dict())
    for study in sweep.studies
    for run in study.all_runs()
  }
  return {'method': _METHOD, 'seeds': seeds, **claims, **runs}


def _hash(found: Any) -> str:
  text = json.dumps(found, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()


def next_seed(path: pathlib.Path = FILE) -> int:
  """Returns the first seed of a new registration."""
  return read(path)['first_seed'] + STEP if path.exists() else _FIRST


def write(
  parts: dict[str, Any], first_seed: int, path: pathlib.Path = FILE
) -> str:
  """Registers a description; returns its hash."""
  found = {
    'digest': _hash(parts),
    'date': datetime.date.today().isoformat(),
    'first_seed': first_seed,
    'parts': parts,
  }
  with files.atomic(path) as temporary:
    temporary.write_text(json.dumps(found, indent=1) + '\n')
  return found['digest']


def read(path: pathlib.Path = FILE) -> dict[str, Any]:
  """Returns what is registered: `digest`, `date`, `first_seed` and `parts`.

  Raises:
    ValueError: nothing is registered, or the file was changed by hand.
  """
  if not path.exists():
    raise ValueError(
      'Nothing is registered yet: --register writes the set-up down, and'
      ' --confirm then runs it with new seeds.'
    )
  found = json_text.loads(path.read_text())
  if _hash(found['parts']) != found['digest']:
    raise ValueError(
      f'{path} was changed after it was registered: its hash is not'
      f' {found["digest"]}. Restore it.'
    )
  return found


def check(parts: dict[str, Any], known: dict[str, Any]) -> None:
  """Checks that the set-up is the registered one.

  Args:
    parts: what `describe` returns.
    known: what `read` returns.

  Raises:
    ValueError: it differs; the message says where.
  """
  registered = known['parts']
  differ = [
    name
    for name in sorted({*parts, *registered})
    if parts.get(name) != registered.get(name)
  ]
  if differ:
    raise ValueError(
      f'This set-up is not the one that was registered on {known["date"]}'
      f' ({known["digest"][:12]}). {len(differ)} parts differ, such as'
      f' {"; ".join(differ[:5])}.'
      ' Go back to the registered code and flags, or register it anew with'
      ' --register, which gives it other seeds.'
    )
