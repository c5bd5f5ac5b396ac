"""Guards: a confirmation runs what was registered, with seeds of its own."""

import copy
import json

import pytest

from vit_jax.configs.sweeps import reproduce
from vit_jax.paper import items, registered

CHOSEN = items.find(['figure11'])
ARGUMENT = 'figure11,scale=mini,seeds=2'
CLAIM = 'claim figure11.hybrid_looks_farther'
RUN = 'run ViT-L_16,JFT-300M,14-epochs/run=pretraining'
NEW = ('seeds', 'claim figure11.b', RUN, 'run new')


def _describe(first_seed=2000):
  sweep = reproduce.get_sweep(f'{ARGUMENT},first_seed={first_seed}')
  return registered.describe(CHOSEN, sweep, 2)


@pytest.fixture(scope='module')
def parts():
  return _describe()


@pytest.fixture
def path(parts, tmp_path):
  found = tmp_path / 'registered.json'
  registered.write(parts, 2000, found)
  return found


def test_the_same_set_up_is_accepted(parts, path, tmp_path):
  known = registered.read(path)
  assert known['digest'] == registered.write(parts, 2000, path)
  registered.check(_describe(), known)
  # The next registration has seeds that no run has used.
  assert known['first_seed'] == 2000
  assert registered.next_seed(path) == 2000 + registered.STEP
  assert registered.next_seed(tmp_path / 'none.json') == 2000


def _weight(parts):
  [terms] = parts[CLAIM].values()
  terms[0][0] *= -1


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    *((_weight, CLAIM), (lambda parts: parts.pop(CLAIM), CLAIM)),
    *((lambda parts, name=name: parts.update({name: 0}), name) for name in NEW),
    (lambda parts: parts['method'].update(level=0.1), 'method'),
  ],
)
def test_another_set_up_is_refused(parts, path, change, message):
  other = copy.deepcopy(parts)
  change(other)
  with pytest.raises(ValueError, match=message):
    registered.check(other, registered.read(path))


def test_what_is_not_asked_in_miniature_is_not_registered():
  claims = {
    f'claim {item.name}.{claim.key}'
    for item in items.ITEMS.values()
    for claim in item.claims('mini')
    if not claim.not_in_miniature
  }
  every = [*items.ITEMS.values()]
  found = registered.describe(every, reproduce.get_sweep(ARGUMENT), 2)
  assert {name for name in found if name.startswith('claim ')} == claims


def test_a_file_changed_by_hand_is_refused(path, tmp_path):
  found = json.loads(path.read_text())
  found['parts']['method']['level'] = 0.2
  path.write_text(json.dumps(found))
  with pytest.raises(ValueError, match='was changed after it was registered'):
    registered.read(path)
  with pytest.raises(ValueError, match='Nothing is registered yet'):
    registered.read(tmp_path / 'none.json')


def test_confirming_runs_have_seeds_of_their_own():
  def seeds(argument):
    sweep = reproduce.get_sweep(argument)
    return [r.overrides['seed'] for s in sweep.studies for r in s.all_runs()]

  tuned = 'table7,scale=mini,seeds=2'
  explored, confirmed = seeds(tuned), seeds(f'{tuned},first_seed=2000')
  assert {*explored} == {0, 1}
  assert confirmed == [seed + 2000 for seed in explored]
  # A fine-tuning run has the seed of its pre-training.
  assert sorted(explored[4 * 2 :]) == 20 * [0] + 20 * [1]
  with pytest.raises(ValueError, match=r'first_seed=2000 .*scale=paper'):
    reproduce.get_sweep('table7,first_seed=2000')
