"""Guards: sweeps are named and checked correctly."""

import pytest

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
    ([Study('a')], "'a' has no runs"),
    ([Study('a', [_A], [_B])], 'must be a function'),
    ([Study('a', [], lambda _: [_A])], 'must be a function'),
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


def test_a_run_can_start_from_the_weights_of_another():
  first = Run('first', 'c.py')
  second = Run('second', 'c.py', {'init.checkpoint': 'run:first', 'a': 1})
  assert (first.needs, second.needs) == ((), ('first',))
  spec.check(Sweep([Study('a', [first]), Study('b', finals=[second])]))


@pytest.mark.parametrize(
  ('needed', 'message'),
  [
    ('other', 'a starts from run:other, but only these runs'),
    # b/seed=0 runs only if its candidate is chosen.
    ('b/seed=0', 'a starts from run:b/seed=0, but .*itself: b/rate'),
    ('a', 'a starts from run:a, but'),
    ('c', 'a starts from run:c, but'),
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
