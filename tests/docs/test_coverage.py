"""Guards: docs/coverage.md has every claim and item, and names what exists."""

import collections
import pathlib
import re

import pytest

from vit_jax.paper import items
from vit_jax.runtime import command_line
from vit_jax.sweep import reading

ROOT = pathlib.Path(__file__).parents[2]
STATES = ('there', 'asked', 'shown', 'in part', 'absent')
_COLUMNS = ['In the paper', 'Here', 'State']
_CODE = re.compile(r'`([^`]+)`')
_FOLDERS = ('configs/', 'docs/', 'launch/', 'tests/', 'vit_jax/')


def rows() -> list[list[str]]:
  """Returns the cells of all rows, without heads."""
  found, inside = [], False
  for line in (ROOT / 'docs/coverage.md').read_text().splitlines():
    cells = [cell.strip() for cell in line.strip('|').split('|')]
    if not line.startswith('|'):
      inside = False
    elif not inside:
      assert cells == _COLUMNS, line
      inside = True
    elif set(line) - set('|- '):
      assert len(cells) == len(_COLUMNS), line
      found.append(cells)
  return found


def state(cell: str) -> tuple[str, str]:
  """Returns the state, and what follows it."""
  name, _, more = cell.partition(': ')
  return name, more


ROWS = rows()
SPANS = sorted({code for row in ROWS for code in _CODE.findall(' '.join(row))})
CONFIGS = [code for code in SPANS if re.match(r'configs/\S+\.py:', code)]


def test_rows_have_a_state_and_what_belongs_to_it():
  assert len({paper for paper, _, _ in ROWS}) == len(ROWS)
  for paper, here, cell in ROWS:
    name, more = state(cell)
    assert name in STATES, paper
    if name in ('in part', 'absent'):
      assert more, paper
    if name == 'there':
      assert more.startswith('`tests/'), paper
    if name != 'absent':
      assert _CODE.search(here), paper


def test_every_claim_is_in_one_row():
  claims = {
    f'{name}.{claim.key}'
    for name, item in items.ITEMS.items()
    for claim in item.claims('paper')
  }
  found = collections.Counter()
  for row in ROWS:
    codes = [code.split('.') for code in _CODE.findall(' '.join(row))]
    keys = ['.'.join(c) for c in codes if len(c) > 1 and c[0] in items.ITEMS]
    assert bool(keys) == (state(row[2])[0] == 'asked'), row
    found.update(keys)
  assert found == collections.Counter(claims)


def test_every_item_is_listed():
  assert set(items.ITEMS) <= {span.split('.')[0] for span in SPANS}


def test_files_exist():
  for code in SPANS:
    if code.startswith(_FOLDERS):
      assert (ROOT / code.partition(':')[0]).exists(), code


@pytest.mark.parametrize('name', CONFIGS)
def test_configs_load(name, monkeypatch):
  monkeypatch.chdir(ROOT)
  if name.startswith('configs/sweeps/'):
    assert reading.load(name).studies
  else:
    assert command_line.load_config(name)
