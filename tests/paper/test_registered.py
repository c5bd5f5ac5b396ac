"""Guards: a confirmation runs what was registered, with seeds of its own."""

import copy
import json

import pytest

from vit_jax.configs.sweeps import reproduce
from vit_jax.paper import design as design_lib
from vit_jax.paper import items, registered

ARGUMENT = 'figure11,scale=mini,seeds=2'


CHOSEN = items.find(['figure11'])


def _describe(sweep, chosen=CHOSEN):
  return registered.describe(design_lib.read('mini', 2), sweep, chosen)


@pytest.fixture(scope='module')
def parts():
  sweep = reproduce.get_sweep(f'{ARGUMENT},first_seed=1000')
  return _describe(sweep)


def test_the_same_set_up_is_accepted(parts, tmp_path):
  path = tmp_path / 'registered.json'
  digest = registered.write(parts, 1000, path)
  known = registered.read(path)
  assert known.digest == digest == registered.digest(parts)
  registered.check(parts, known, CHOSEN)
  # The next registration has seeds that no run has used.
  assert known.first_seed == 1000
  assert registered.next_seed(path) == 2000
  assert registered.next_seed(tmp_path / 'none.json') == 1000


def test_the_registered_runs_are_those_of_today(parts):
  known = registered.read().parts['runs']
  assert parts['runs'].items() <= known.items()


def _claim(parts):
  contrasts = parts['claims']['figure11.hybrid_looks_farther']['contrasts']
  [terms] = contrasts.values()
  terms[0][0] *= -1


def _level(parts):
  parts['method']['level'] = 0.1


def _run(parts):
  parts['runs'][next(iter(parts['runs']))] = 'of another config'


def _new_run(parts):
  parts['runs']['new'] = 'of a config'


def _without_claim(parts):
  parts['claims'].clear()


def _new_claim(parts):
  parts['claims']['figure11.other'] = {}


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    (_claim, 'claims: figure11.hybrid_looks_farther'),
    (_level, 'method: level'),
    (_run, 'runs: ViT-L_16'),
    (_new_run, 'runs: new'),
    (_without_claim, 'claims: figure11.hybrid_looks_farther'),
    (_new_claim, 'claims: figure11.other'),
  ],
)
def test_another_set_up_is_refused(parts, tmp_path, change, message):
  path = tmp_path / 'registered.json'
  registered.write(parts, 1000, path)
  other = copy.deepcopy(parts)
  change(other)
  with pytest.raises(ValueError, match=message):
    registered.check(other, registered.read(path), CHOSEN)


def test_each_item_is_confirmed_by_itself(parts, tmp_path):
  chosen = items.find(['figure9', 'figure11'])
  both = _describe(
    reproduce.get_sweep('figure9+figure11,scale=mini,seeds=2,first_seed=1000'),
    chosen,
  )
  path = tmp_path / 'registered.json'
  registered.write(both, 1000, path)
  registered.check(parts, registered.read(path), CHOSEN)
  # An item that is not registered leaves the others as they are.
  registered.write(parts, 1000, path)
  registered.check(parts, registered.read(path), CHOSEN)
  with pytest.raises(ValueError, match=r'claims: figure9\.lower_rate; runs: '):
    registered.check(both, registered.read(path), chosen)


def test_a_setting_of_a_run_changes_the_hash(parts):
  sweep = reproduce.get_sweep(f'{ARGUMENT},first_seed=2000')
  other = _describe(sweep)
  assert other['claims'] == parts['claims']
  assert {*other['runs'].values()}.isdisjoint(parts['runs'].values())


def test_a_file_changed_by_hand_is_refused(parts, tmp_path):
  path = tmp_path / 'registered.json'
  registered.write(parts, 1000, path)
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
  explored, confirmed = seeds(tuned), seeds(f'{tuned},first_seed=1000')
  assert {*explored} == {0, 1}
  assert confirmed == [seed + 1000 for seed in explored]
  # A fine-tuning run has the seed of its pre-training.
  pretrainings = 4 * 2
  assert sorted(explored[pretrainings:]) == 20 * [0] + 20 * [1]
  # Final runs that follow from a choice are shifted, too.
  studies = (
    reproduce.get_sweep(f'table7{more}').studies[-1]
    for more in ('', ',first_seed=1000')
  )
  old, new = (
    [run.overrides['seed'] for run in study.finals_of(study.candidates[0])]
    for study in studies
  )
  assert new == [seed + 1000 for seed in old]


def test_keys_that_came_later_leave_the_registration_valid(parts):
  runs = registered.read().parts['runs']
  assert parts['runs'] == {name: runs[name] for name in parts['runs']}


def test_the_registered_set_up_is_as_it_was_written():
  known = registered.read()
  assert known.first_seed % registered.STEP == 0 < known.first_seed
  assert {*known.parts} == {'claims', 'runs', 'method'}
  assert len(known.parts['claims']) > 40


def test_the_registration_that_was_confirmed_still_holds(parts):
  known = registered.read()
  both = parts['runs'].keys() & known.parts['runs'].keys()
  assert both
  assert {n: parts['runs'][n] for n in both} == {
    n: known.parts['runs'][n] for n in both
  }
