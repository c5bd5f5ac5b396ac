"""Guards: the search tries the right settings in the right order."""

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
