"""Guards: the search tries the right settings in the right order."""

import pytest

from vit_jax import config as config_lib
from vit_jax.plan import compiling, remedies

GIB = compiling.GIB
USABLE = 16 * GIB


def _candidate(name, activations, held=2, family='none'):
  return remedies.Candidate(
    {'name': name},
    held=held * GIB,
    gradients=GIB,
    activations=round(activations * GIB),
    family=family,
  )


def _compiler(needs):
  """Returns a fake compiler and the list of names that it compiled.

  Args:
    needs: name of a candidate -> GiB that it needs.
  """
  compiled = []

  def compile_(candidate):
    name = candidate.changes['name']
    compiled.append(name)
    memory = compiling.Memory(0, 0, 0, 0, temporaries=round(needs[name] * GIB))
    fits = needs[name] <= 16
    return compiling.Compiled(memory, USABLE, 'estimate' if fits else None, 1.0)

  return compile_, compiled


def _names(tried):
  return [one.candidate.changes['name'] for one in tried]


def test_memory_is_predicted_and_corrected():
  candidate = _candidate('a', activations=20)
  assert candidate.predict(0.5) == 13 * GIB
  assert candidate.kept(13 * GIB) == 0.5
  assert candidate.least() == 6 * GIB
  # The share is never 0, since other candidates have other working space.
  assert candidate.kept(1 * GIB) == 0.1


def test_the_first_that_is_predicted_to_fit_is_the_answer():
  # 3 + 0.45 * 32 = 17.4 and 3 + 0.45 * 16 = 10.2.
  candidates = [_candidate('a', 32), _candidate('b', 16), _candidate('c', 8)]
  compile_, compiled = _compiler({'a': 20, 'b': 12, 'c': 5})
  answer, tried, _ = remedies.find(candidates, compile_, USABLE)
  assert answer.candidate is candidates[1]
  # It kept (12 - 3) / 16 = 0.5625, with which `a` needs 21.
  assert compiled == _names(tried) == ['b']


def test_a_skipped_candidate_is_tried_when_predictions_fall():
  candidates = [_candidate('a', 32), _candidate('b', 16)]
  # `b` kept (7 - 3) / 16 = 0.25, with which `a` needs 11.
  compile_, compiled = _compiler({'a': 12, 'b': 7})
  answer, _, _ = remedies.find(candidates, compile_, USABLE)
  assert compiled == ['b', 'a']
  assert answer.candidate is candidates[0]
  # If this prediction was wrong, the candidate that fits stays the answer.
  compile_, compiled = _compiler({'a': 17, 'b': 7})
  answer, tried, _ = remedies.find(candidates, compile_, USABLE)
  assert compiled == _names(tried) == ['b', 'a']
  assert answer.candidate is candidates[1]


def test_a_candidate_that_does_not_fit_raises_the_predictions():
  candidates = [
    _candidate(name, size)
    for name, size in zip('abcd', (28, 20, 12, 6), strict=True)
  ]
  # `a` kept 1.0, with which `b` needs 23 and `c` 15.
  compile_, compiled = _compiler({'a': 31, 'b': 9, 'c': 9, 'd': 9})
  answer, _, _ = remedies.find(candidates, compile_, USABLE)
  assert compiled[:2] == ['a', 'c']
  # `c` kept 0.5, so `b` has a chance again.
  assert compiled == ['a', 'c', 'b']
  assert answer.candidate is candidates[1]


def test_earlier_compilations_inform_the_predictions():
  candidates = [_candidate('a', 20), _candidate('b', 10)]
  before = remedies.Tried(
    _candidate('given', 40),
    _compiler({'given': 43})[0](_candidate('given', 40)),
  )
  compile_, compiled = _compiler({'a': 1, 'b': 13})
  answer, _, _ = remedies.find(candidates, compile_, USABLE, tried=[before])
  # The compiler kept all activations, so `a` needs 23 and `b` 13.
  assert compiled == ['b']
  assert answer.candidate is candidates[1]


def test_each_remat_mode_is_predicted_separately():
  candidates = [
    _candidate('a', 12, family='none'),
    _candidate('b', 24, family='dots'),
    _candidate('c', 10, family='full'),
  ]
  compile_, compiled = _compiler({'a': 30, 'b': 8, 'c': 8})
  answer, _, _ = remedies.find(candidates, compile_, USABLE)
  # `a` kept 2.25. Other families are assumed to keep at most 1.0 until one is
  # compiled, so `b` needs 27 and `c` 13.
  assert compiled == ['a', 'c']
  assert answer.candidate is candidates[2]


def test_limits():
  candidates = [_candidate(str(i), 10) for i in range(9)]
  needs = {str(i): 16.5 for i in range(9)}
  said = []
  # The search expects 3 + 1.35 * 10 = 16.5, so a second try needs more than 16.
  compile_, compiled = _compiler(needs)
  answer, tried, ended = remedies.find(
    candidates, compile_, 17 * GIB, max_tries=3, say=said.append
  )
  assert answer is None
  assert ended.startswith('--max_tries is reached')
  assert len(tried) == len(compiled) == 3
  assert said[-1].startswith('The search ends after 3 compilations')
  compile_, compiled = _compiler(needs)
  answer, _, ended = remedies.find(
    candidates, compile_, 17 * GIB, max_seconds=-1
  )
  assert (answer, compiled) == (None, [])
  assert ended.startswith('--max_minutes is reached')
  answer, _, ended = remedies.find(candidates, compile_, GIB)
  assert (answer, compiled) == (None, [])
  assert 'no other settings are predicted to fit' in ended


def _accumulated(steps, activations, **others):
  changes = others | {'accumulation_steps': steps}
  return remedies.Candidate(changes, GIB, GIB, round(activations * GIB))


def test_after_two_failures_another_kind_of_remedy_is_tried():
  # Accumulation does not reduce the 15 GiB that the compiler keeps.
  candidates = [_accumulated(2**i, 40 / 2**i) for i in range(1, 6)]
  split = _accumulated(2, 5, split=True)
  smaller = _accumulated(1, 1, **{'data.batch_size': 8})

  def compile_(candidate):
    size = 12 if candidate is split else 17
    memory = compiling.Memory(0, 0, 0, 0, temporaries=size * GIB)
    estimate = 'estimate' if size < 16 else None
    return compiling.Compiled(memory, USABLE, estimate, 1.0)

  every = [*candidates, split, smaller]
  answer, tried, ended = remedies.find(every, compile_, USABLE, max_tries=4)
  steps = [one.candidate.changes['accumulation_steps'] for one in tried]
  assert steps == [2, 4, 2]
  assert answer.candidate is split
  assert ended == ''
  # Without `split`, the kind that failed comes before a smaller batch.
  every.remove(split)
  _, tried, _ = remedies.find(every, compile_, USABLE, max_tries=9)
  assert tried[-1].candidate is smaller
  assert len(tried) > 3


def test_a_compiler_error_does_not_fit_and_predicts_nothing():
  candidates = [_candidate('a', 20), _candidate('b', 16)]

  def compile_(candidate):
    memory = compiling.Memory(0, 0, 0, 0, temporaries=12 * GIB)
    if candidate is candidates[0]:
      nothing = compiling.Memory(0, 0, 0, 0)
      return compiling.Compiled(nothing, USABLE, None, 1.0, error='crash')
    return compiling.Compiled(memory, USABLE, 'estimate', 1.0)

  said = []
  answer, tried, _ = remedies.find(
    candidates, compile_, USABLE, say=said.append
  )
  assert answer.candidate is candidates[1]
  assert _names(tried) == ['a', 'b']
  assert said[1] == 'The compiler fails: crash'
  # The prediction is the initial one: 3 + 0.45 x 16.
  assert 'expecting 10.2 GiB' in said[2]


def _config(**changes):
  config = config_lib.default()
  config.data.batch_size = 256
  config.update_from_flattened_dict(changes)
  return config


def test_settings_from_cheap_to_expensive():
  found = list(remedies.settings(_config(), devices=8))
  axes = {'mesh.data': 1, 'mesh.fsdp': 8}
  split = axes | {'mesh.shard': 'optimizer'}
  whole = axes | {'mesh.shard': 'all', 'mesh.gather': 'micro_batch'}
  # A device has 32 rows, and a micro-batch at least 8 of them.
  assert found[:9] == [
    {},
    {'accumulation_steps': 2},
    {'accumulation_steps': 4},
    split,
    split | {'accumulation_steps': 2},
    split | {'accumulation_steps': 4},
    whole,
    whole | {'accumulation_steps': 2},
    whole | {'accumulation_steps': 4},
  ]
  assert found[9] == {'model.remat': 'dots'}
  assert found[18] == {'model.remat': 'full'}
  assert found[26] == whole | {'model.remat': 'full', 'accumulation_steps': 4}
  last = whole | {'model.remat': 'full'}
  assert found[27:30] == [
    last | {'accumulation_steps': steps} for steps in (8, 16, 32)
  ]
  # Smaller batches come last, each with the settings that need least memory.
  assert found[30:] == [
    last | {'data.batch_size': batch, 'accumulation_steps': batch // 8}
    for batch in (128, 64, 32, 16, 8)
  ]


def test_settings_of_the_user_are_kept():
  config = _config(
    **{
      'accumulation_steps': 8,
      'mesh.data': 1,
      'mesh.fsdp': -1,
      'mesh.shard': 'optimizer',
      'model.remat': 'full',
    }
  )
  found = list(remedies.settings(config, devices=8))
  # A micro-batch has only four rows already, below the eight of a full one.
  more = {'mesh.shard': 'all', 'mesh.gather': 'micro_batch'}
  assert found[:3] == [{}, more, more | {'accumulation_steps': 16}]
  assert not any('mesh.fsdp' in c or 'model.remat' in c for c in found)


def _splits(devices, slices=1, **changes):
  """Returns the distinct mesh settings that the search proposes."""
  config = _config(**{f'mesh.{key}': v for key, v in changes.items()})
  found = []
  for settings in remedies.settings(config, devices, slices):
    mesh = {
      key.removeprefix('mesh.'): value
      for key, value in settings.items()
      if key.startswith('mesh.')
    }
    if mesh not in found:
      found.append(mesh)
  return found


def test_a_state_is_split_further_only_in_valid_ways():
  every = {'shard': 'all', 'gather': 'micro_batch'}
  # As in configs/pretrain.py, the state is already in 32 parts, or in one per
  # device if there are fewer.
  assert _splits(128, data=-1, fsdp=-1) == [{}, every]
  assert _splits(8, data=-1, fsdp=-1) == [{}, every]
  assert _splits(8, data=1, fsdp=-1) == [{}, every]
  assert _splits(8, data=1, fsdp=-1, gather='micro_batch') == [{}]
  assert _splits(8, data=1, fsdp=-1, shard='none') == [
    {},
    {'shard': 'optimizer'},
    every,
  ]
  # The search keeps more than 32 parts, and splits one part into 32.
  assert _splits(128, data=1, fsdp=-1) == [{}, every]
  assert _splits(128, data=-1, fsdp=1)[-1] == {'data': 4, 'fsdp': 32} | every
  # Four of eight devices share a state; all eight can.
  for fsdp in (4, -1):
    assert _splits(8, data=2, fsdp=fsdp) == [
      {},
      {'data': 1, 'fsdp': 8} | every,
    ]
  assert _splits(8, data=2, fsdp=4, gather='micro_batch') == [
    {},
    {'data': 1, 'fsdp': 8} | every,
  ]
  assert _splits(8, data=8) == [
    {},
    {'data': 1, 'fsdp': 8, 'shard': 'optimizer'},
    {'data': 1, 'fsdp': 8} | every,
  ]
  # A state is split only within a slice.
  assert _splits(16, slices=2, data=2, fsdp=-1) == [{}, every]
  assert _splits(32, slices=2, tensor=2)[2] == {'data': 2, 'fsdp': 8} | every
  # One device cannot split its state.
  assert _splits(1) == [{}]


@pytest.mark.parametrize(
  'changes, text',
  [
    ({}, 'as given'),
    (
      {'accumulation_steps': 4, 'model.remat': 'dots'},
      '--config.accumulation_steps=4 --config.model.remat=dots',
    ),
    ({'image_size': (8, 8)}, "'--config.image_size=(8, 8)'"),
  ],
)
def test_settings_as_flags(changes, text):
  assert str(remedies.Candidate(changes, 0, 0, 0)) == text
