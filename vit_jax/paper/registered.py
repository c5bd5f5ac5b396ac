"""The registered set-up: what confirming runs must not change.

A set-up is chosen by looking at results, so the same results cannot confirm
anything. `reproduce --register` writes down the claims, their tests and the
config of each run, with a hash over all of them. `reproduce --confirm` then
runs exactly this, with seeds that were used for nothing else.
"""

import dataclasses
import datetime
import hashlib
import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from vit_jax.paper.claims import decision
from vit_jax.paper.claims.claim import Claim
from vit_jax.paper.design import Design
from vit_jax.paper.items.item import Item
from vit_jax.runtime import json_text
from vit_jax.sweep import reading
from vit_jax.sweep.spec import Run, Sweep
from vit_jax.workdir import files

FILE = pathlib.Path(__file__).parent / 'claims' / 'registered_mini.json'
# Config keys that came after that file. Unset, they change nothing about a run,
# so its hash leaves them out.
_LATER = ('model.norm_position',)
# The limit of that time. The registered runs draw their images, all small.
_MAX_PIXELS = 2**28
# Seeds count from a multiple of this: explorations from 0, each registration's
# from the next one, so that no seed is used twice.
STEP = 1000


@dataclasses.dataclass(frozen=True)
class Registered:
  """A registered set-up.

  Attributes:
    digest: SHA-256 of all that is registered.
    date: of the registration, such as `2026-11-26`.
    first_seed: of the runs that confirm it.
    parts: 'claims', 'runs' and 'method' -> name -> what is registered of it.
  """

  digest: str
  date: str
  first_seed: int
  parts: Mapping[str, Mapping[str, Any]]


def describe(
  design: Design, sweep: Sweep, described: Iterable[Item]
) -> dict[str, dict[str, Any]]:
  """Returns what a registration fixes of some items, as JSON.

  Args:
    design: the scale, and how many pre-trainings there are.
    sweep: the runs of these items, with the seeds of confirming runs.
    described: the items.
  """
  return {
    'method': {
      'level': decision.LEVEL,
      'test': "Welch's t-test in both directions; yes needs all tests, no"
      ' needs one of them after Bonferroni; Holm over the claims of an item',
    },
    'claims': {
      f'{item.name}.{claim.key}': _claim(claim, design.counts(item))
      for item in described
      for claim in item.claims(design.scale)
    },
    'runs': {
      run.name: _hash(json.dumps(_config(run), sort_keys=True))
      for study in sweep.studies
      for run in study.all_runs()
    },
  }


def _config(run: Run) -> dict[str, Any]:
  """Returns a run's config without the later keys that it leaves unset."""
  config = reading.read_config(run).to_dict()
  config['data']['max_pixels'] = _MAX_PIXELS
  # Keys that were there at the registration, and are gone.
  config['data'] |= {'uneven_classes': 'error', 'prefetch': None}
  config['data']['scaled_decoding'] = False
  config['init']['max_inflation'] = 16.0
  config['guard']['report_after'] = 600.0
  config['log']['upload_every'] = 30.0
  config['mesh']['slices'] = 0
  config['model']['quantization'] = None
  for key in _LATER:
    section, name = key.split('.')
    if config[section][name] is None:
      del config[section][name]
  return config


def _claim(claim: Claim, counts: Mapping[Any, int]) -> dict[str, Any]:
  return {
    'statement': claim.statement,
    'contrasts': {
      contrast.what: [
        [
          round(weight, 6),
          mean.measure.name,
          mean.name,
          f'{counts[mean.start]} pre-trainings',
        ]
        for weight, mean in contrast.sum.terms
        if weight
      ]
      for contrast in claim.contrasts
    },
  }


def _tested(part: Any) -> Any:
  """Returns a part without the wording of a claim."""
  if isinstance(part, Mapping):
    return {key: value for key, value in part.items() if key != 'statement'}
  return part


def _hash(text: str) -> str:
  return hashlib.sha256(text.encode()).hexdigest()


def digest(parts: Mapping[str, Any]) -> str:
  """Returns the hash of a description."""
  return _hash(json.dumps(parts, sort_keys=True))


def next_seed(path: pathlib.Path = FILE) -> int:
  """Returns the first seed of a new registration."""
  return (read(path).first_seed if path.exists() else 0) + STEP


def write(
  parts: Mapping[str, Any], first_seed: int, path: pathlib.Path = FILE
) -> str:
  """Registers a description; returns its hash."""
  found = {
    'digest': digest(parts),
    'date': datetime.date.today().isoformat(),
    'first_seed': first_seed,
    'parts': parts,
  }
  with files.atomic(path) as temporary:
    temporary.write_text(json.dumps(found, indent=1) + '\n')
  return found['digest']


def read(path: pathlib.Path = FILE) -> Registered:
  """Returns the registered set-up.

  Raises:
    ValueError: nothing is registered, or the file was changed by hand.
  """
  if not path.exists():
    raise ValueError(
      'Nothing is registered yet: --register writes the set-up down, and'
      ' --confirm then runs it with new seeds.'
    )
  found = Registered(**json_text.loads(path.read_text()))
  if digest(found.parts) != found.digest:
    raise ValueError(
      f'{path} was changed after it was registered: its hash is not'
      f' {found.digest}. Restore it.'
    )
  return found


def wordings(path: pathlib.Path = FILE) -> dict[str, str]:
  """Returns 'item.key' -> the registered statement of the claim."""
  if not path.exists():
    return {}
  return {
    name: claim['statement']
    for name, claim in read(path).parts['claims'].items()
  }


def came_later(
  chosen: Iterable[Item], registered: Registered, scale: str
) -> list[Item]:
  """Returns the items whose claims came after the registration."""
  known = {name.partition('.')[0] for name in registered.parts['claims']}
  return [
    item for item in chosen if item.claims(scale) and item.name not in known
  ]


def check(
  parts: Mapping[str, Any], registered: Registered, checked: Iterable[Item]
) -> None:
  """Checks that the set-up of some items is the registered one.

  Items that came after the registration change nothing about the others. The
  statement of a claim may become clearer, as long as its tests stay the same.

  Args:
    parts: what `describe` returns for these items.
    registered: what was registered.
    checked: the items.

  Raises:
    ValueError: it differs; the message says where.
  """
  chosen = {item.name for item in checked}
  # Each claim of these items must be there, also one that is gone by now.
  names = {
    'method': {*parts['method'], *registered.parts['method']},
    'claims': {*parts['claims']}
    | {
      name
      for name in registered.parts['claims']
      if name.partition('.')[0] in chosen
    },
    'runs': {*parts['runs']},
  }
  differ = [
    f'{part}: {name}'
    for part, compared in names.items()
    for name in sorted(compared)
    if _tested(parts[part].get(name))
    != _tested(registered.parts[part].get(name))
  ]
  if not differ:
    return
  shown = '; '.join(differ[:5])
  more = f'; and {len(differ) - 5} more' if len(differ) > 5 else ''
  raise ValueError(
    f'This set-up is not the one that was registered on {registered.date}'
    f' ({registered.digest[:12]}). It differs in {shown}{more}. Leave out'
    ' items that came later, go back to the registered code and flags, or'
    ' register it anew with --register, which gives it other seeds.'
  )
