"""One of the processes that the tests beside this file start.

    PLACE='{"process_id": 0, ...}' python -m tests.processes.worker \\
        '{"task": "train", ...}'

Every task writes what this process saw to `OUT.PROCESS.json` or `.npz`.
"""

import collections
import hashlib
import json
import os
import sys

import jax
import ml_collections
import numpy as np
from absl import logging

from vit_jax import config as config_lib
from vit_jax import data, distributed, preemption, sharding, train
from vit_jax.data import ops, pipeline


def hashes(array: jax.Array) -> dict[str, list[str]]:
  """Row -> the hash of its bytes on each device here that holds it."""
  found = collections.defaultdict(list)
  for shard in array.addressable_shards:
    first = shard.index[0].indices(len(array))[0]
    for i, row in enumerate(np.asarray(shard.data)):
      digest = hashlib.sha256(row.tobytes()).hexdigest()[:16]
      found[str(first + i)].append(digest)
  return dict(found)


def see_images(*, out, meshes, steps, batch_size, start_step=0):
  """Puts the batches of a data set whose size nothing divides on meshes."""
  view = data.View(data.open_source('digits'), 'train[:101]')
  preprocess = ops.parse(
    'resize|pad(1)|random_crop', image_size=(8, 8), channels=1
  )
  result = {}
  for name, mesh in meshes.items():
    mesh = sharding.make_mesh(**mesh)
    batches = pipeline.train_batches(
      view,
      preprocess,
      batch_size=batch_size,
      seed=3,
      num_classes=10,
      start_step=start_step,
      rows=sharding.local_rows(mesh, batch_size),
    )
    feed = sharding.feed(batches, mesh, steps, lambda seconds: None)
    result[name] = [
      {key: hashes(batch[key]) for key in ('image', 'label')} for batch in feed
    ]
    batches.close()
  _write(out, result)


def run_training(*, out, workdir, config, stop_at=0):
  """A run from a config's dict; stops after a step, as if preempted.

  Writes the hashes of the images of every step.
  """
  config = ml_collections.ConfigDict(config)
  seen = {}
  put_batch = sharding.batch.put_batch

  def put_and_note(batch, mesh):
    result = put_batch(batch, mesh)
    if note['training']:
      seen[str(len(seen))] = hashes(result['image'])
    return result

  note = {'training': True}
  sharding.batch.put_batch = put_and_note

  def requested(self, step):
    self.reason = 'test'
    return step == stop_at

  preemption.Notice.requested = requested
  try:
    train.train_and_evaluate(config, workdir)
  finally:
    _write(out, seen)


def _write(out, value):
  with open(f'{out}.{jax.process_index()}.json', 'w') as f:
    json.dump(value, f)


TASKS = {'images': see_images, 'train': run_training}


def main():
  logging.set_verbosity(logging.INFO)
  # The command line must be the same for all processes.
  place = json.loads(os.environ['PLACE'])
  arguments = json.loads(sys.argv[1])
  task = TASKS[arguments.pop('task')]
  with distributed.connected(**place, start_timeout=60, lost_timeout=30):
    task(**arguments)


if __name__ == '__main__':
  main()
