"""Guards: sweeps are named, checked and stored as JSON correctly."""

import json

import pytest

from tests.sweep import fakes
from vit_jax.sweep import Run, Study, Sweep, make_run, spec


@pytest.mark.parametrize(
  'study, labels, name',
  [
    ('digits:01', {'rate': 0.03}, 'digits:01/rate=0.03'),
    ('a', {'rate': 0.001, 'seed': 2}, 'a/rate=0.001,seed=2'),
    ('folder:/data/my birds', {'x': '../y'}, 'folder:_data_my_birds/x=.._y'),
    ('..', {'model': 'ViT-B/16'}, '_/model=ViT-B_16'),
  ],
)
def test_a_run_is_named_by_its_labels(study, labels, name):
  run = make_run(study, 'c.py', {}, **labels)
  assert run.name == name
  assert run.labels == labels
  spec.check(Sweep([Study('a', [run])]))


_A, _B = Run('a/x=1', 'c.py'), Run('a/x=2', 'c.py')


@pytest.mark.parametrize(
  'studies, message',
  [
    ([Study('a', [_A]), Study('a', [_B])], "Two studies are called 'a'"),
    ([Study('a')], "'a' has no runs"),
    ([Study('a', [_A], [_B])], 'have no effect'),
    ([Study('a', [], lambda _: [_A])], 'there are no candidates'),
    ([Study('a', [_A, _A])], "'a' has a candidate twice"),
    ([Study('a', [_A, Run('a/x=1', 'd.py')])], "runs are called 'a/x=1'"),
    ([Study('a', [_A]), Study('b', [_A])], "runs are called 'a/x=1'"),
    ([Study('a', [Run('a', 'c.py'), _A])], "'a/x=1' would lie in the work"),
    ([Study('a', [Run('../x', 'c.py')])], "'../x' cannot be the name"),
    ([Study('a', [Run('/x', 'c.py')])], "'/x' cannot be the name"),
    ([Study('a', [Run('', 'c.py')])], "'' cannot be the name"),
  ],
)
def test_wrong_sweeps_are_refused(studies, message):
  with pytest.raises(ValueError, match=message):
    spec.check(Sweep(studies))


def test_json_keeps_the_finals_of_each_candidate():
  sweep = Sweep(
    [
      fakes.study(),
      Study('fixed', finals=[Run('f', 'c.py', {'image_size': (16, 16)})]),
      Study('bare', [_A, _B]),
    ]
  )
  again = spec.from_json(json.loads(json.dumps(spec.to_json(sweep))))
  assert again.studies[0].candidates == tuple(sweep.studies[0].candidates)
  for candidate in sweep.studies[0].candidates:
    rate = candidate.overrides['rate']
    assert [run.name for run in again.studies[0].finals_of(candidate)] == [
      f'a/rate={rate},seed=0',
      f'a/rate={rate},seed=1',
      f'a/rate={rate},seed=2',
    ]
  [fixed] = again.studies[1].finals_of(None)
  assert fixed.overrides == {'image_size': (16, 16)}
  assert again.studies[2].finals is None


def test_a_run_can_start_from_the_weights_of_another():
  first = Run('first', 'c.py')
  second = Run('second', 'c.py', {'init.checkpoint': 'run:first', 'a': 1})
  assert (first.needs, second.needs) == ((), ('first',))
  spec.check(Sweep([Study('a', [first]), Study('b', finals=[second])]))


@pytest.mark.parametrize(
  ('needed', 'message'),
  [
    ('other', 'a starts from run:other, but only these runs are certain'),
    # b/seed=0 runs only if its candidate is chosen.
    ('b/seed=0', 'a starts from run:b/seed=0, but .*certain to run: a, b/r'),
    ('a', 'a starts from its own weights'),
    ('c', '[ac] starts from its own weights'),
  ],
)
def test_weights_that_no_run_can_start_from_are_refused(needed, message):
  run = Run('a', 'c.py', {'init.checkpoint': f'run:{needed}'})
  chosen = Study(
    'b',
    [Run('b/rate=1', 'c.py')],
    lambda winner: [Run('b/seed=0', 'c.py')],
  )
  circle = Run('c', 'c.py', {'init.checkpoint': 'run:a'})
  with pytest.raises(ValueError, match=message):
    spec.check(Sweep([Study('a', [run]), chosen, Study('c', [circle])]))
