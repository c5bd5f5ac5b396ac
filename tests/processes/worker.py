"""One of the processes that the tests in this folder start.

    PLACE='{"process_id": 0, ...}' python -m tests.processes.worker \\
        '{"task": "train", ...}'

Every task writes what this process saw to `OUT.PROCESS.json` or `.npz`.
"""

import collections
import errno
import hashlib
import json
import os
import sys

import jax
import numpy as np
import pytest
from absl import logging

from tests import several
from tests.tiny_run import tiny_config
from tests.training import flipping
from vit_jax import checkpoint, sharding
from vit_jax import config as config_lib
from vit_jax.evaluators import predictions
from vit_jax.runtime import distributed, errors, preemption
from vit_jax.training import replay, train
from vit_jax.workdir import ownership


def hashes(array: jax.Array) -> dict[str, list[str]]:
  """Returns row -> the hashes of its bytes on the local devices."""
  found = collections.defaultdict(list)
  for shard in array.addressable_shards:
    first = shard.index[0].indices(len(array))[0]
    for i, row in enumerate(np.asarray(shard.data)):
      digest = hashlib.sha256(row.tobytes()).hexdigest()[:16]
      found[str(first + i)].append(digest)
  return dict(found)


def run_training(*, out, runs):
  """Runs several configs, one after another.

  Writes for each run the hashes of the images and labels of every step.

  Args:
    out: the beginning of the path of the output.
    runs: arguments of `_run`, by the run's name.
  """
  seen = {name: _run(**run) for name, run in runs.items()}
  _write(out, seen)


def _run(*, workdir, config, stop_after=0, slow_until=0):
  """Trains; stops as if preempted at call `stop_after` of `requested`.

  Process 1 says up to step `slow_until` that it is still saving.
  """
  seen = []
  put_batch = sharding.batch.put_batch

  def put_and_note(batch, mesh):
    result = put_batch(batch, mesh)
    seen.append(
      {
        f'{key} {row}': digests
        for key in ('image', 'label')
        for row, digests in hashes(result[key]).items()
      }
    )
    return result

  calls = []

  def requested(self):
    self.reason = 'test'
    calls.append(None)
    return len(calls) == stop_after

  def is_saving(self):
    return jax.process_index() == 1 and len(calls) <= slow_until

  with pytest.MonkeyPatch.context() as patch:
    # Evaluations put their batches on the devices by another function.
    patch.setattr(sharding.batch, 'put_batch', put_and_note)
    patch.setattr(preemption.Notice, 'requested', requested)
    if slow_until:
      patch.setattr(checkpoint.Checkpoints, 'is_saving', is_saving)
    try:
      train.train_and_evaluate(several_config(**config), workdir)
    except errors.PreemptedError:
      assert stop_after
  return seen


EVALS = ('test', 'few', 'near', 'probe')


def several_config(*, mesh, changes=(), evals=EVALS):
  """Returns a config of 20 steps with dropout.

  Args:
    mesh: keys of the section of this name.
    changes: further keys and their values.
    evals: which of `EVALS` it has.
  """
  config = tiny_config(
    {
      'data.dataset': 'digits',
      'data.train_split': 'train[:301]',
      'data.preprocess': 'resize|pad(1)|random_crop',
      'data.batch_size': 32,
      'total_steps': 20,
      'model.width': 32,
      'model.heads': 8,
      'model.mlp_dim': 64,
      'model.dropout_rate': 0.1,
      'polyak.decay': 0.9,
      'checkpoint.every': 10,
      'log.every': 1,
      'mesh.data': -1,
    }
  )
  # Adam takes steps of full size even if a gradient is only rounding error.
  config.optimizer = config_lib.optimizer('sgd', momentum=0.9, clip_norm=1.0)
  config.schedule = config_lib.schedule('cosine', peak=0.05, warmup_steps=5)
  sections = {
    'test': dict(save_predictions=True, every=10),
    'few': dict(kind='few_shot', shots=(1, 5), every=10),
    'near': dict(kind='knn', k=(5,)),
    'probe': dict(kind='linear_probe'),
  }
  for name in evals:
    features = {} if name == 'test' else {'train_split': 'train[301:401]'}
    config.evals[name] = config_lib.evaluation(
      'test[:101]', **features, **sections[name]
    )
  config.mesh.update(mesh)
  config.update_from_flattened_dict(dict(changes))
  return config


def _write(out, value):
  with open(f'{out}.{jax.process_index()}.json', 'w') as f:
    json.dump(value, f)


def disagree(*, out, cases):
  """Tries runs with different arguments in each process; writes the errors.

  Args:
    out: the beginning of the path of the output.
    cases: by name, the work directory, the training split and the data set of
      each process. A data set is 'digits' or a folder that has `images/`.
  """
  index = jax.process_index()
  ownership.PATIENCE_SHARED = 1.0
  found = {}
  for name, (workdirs, splits, datasets) in cases.items():
    config = several_config(mesh=dict(data=-1))
    config.data.train_split = splits[index]
    if datasets[index] != 'digits':
      os.chdir(datasets[index])
      config.data.dataset, config.channels = 'folder:images', 3
      config.evals = {}
    with pytest.raises(ValueError, match=r'differs|--workdir') as error:
      train.train_and_evaluate(config, workdirs[index])
    found[name] = str(error.value)
  _write(out, found)


def fail_to_save_predictions(*, workdir):
  """Trains until process 0 cannot write the predictions."""

  def write(*_):
    raise OSError(errno.ENOSPC, 'No space left on device')

  predictions.write = write
  config = several_config(mesh=dict(data=-1), evals=['test'])
  config.total_steps, config.schedule.warmup_steps = 1, 0
  train.train_and_evaluate(config, workdir)


def compute_twice(*, workdir):
  """Trains, replays the run, and trains with a wrong bit in process 1."""
  changes = {
    'model.dropout_rate': 0.0,  # Each device works on its own rows.
    'guard.replay_every': 2,
    'total_steps': 8,
    'schedule.warmup_steps': 0,
  }
  config = several_config(mesh=dict(data=-1), evals=['test'], changes=changes)
  train.train_and_evaluate(config, f'{workdir}/right')
  print(replay.replay(f'{workdir}/right', first=0))
  flipping.flip(pytest.MonkeyPatch(), at=6, device=2)
  train.train_and_evaluate(config, f'{workdir}/wrong')


TASKS = {
  'twice': compute_twice,
  'train': run_training,
  'disagree': disagree,
  'fail': fail_to_save_predictions,
}


def main():
  logging.set_verbosity(logging.INFO)
  # The command line must be the same for all processes.
  place = several.place()
  arguments = json.loads(sys.argv[1])
  task = TASKS[arguments.pop('task')]
  with distributed.connected(**place, start_timeout=60, lost_timeout=30):
    task(**arguments)


if __name__ == '__main__':
  main()
