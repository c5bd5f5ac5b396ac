"""Guards: the worker process that times timm's step runs."""

import json
import pathlib
import sys

import pytest

from benchmarks import jax_worker
from tests import commands

ROOT = pathlib.Path(__file__).parents[2]
TASK = {
  'model': 'ViT-Ti/16',
  'num_classes': 10,
  'batch_size': 4,
  'image_size': 32,
  'device': 'cpu',
  'turns': 2,
  'steps': 1,
  'warmup': 1,
}


@pytest.mark.hf
def test_both_workers_time_the_same_model():
  words = (sys.executable, '-m', 'benchmarks.timm_worker', json.dumps(TASK))
  done = commands.run_new(*words)
  timm = json.loads(done.stdout.splitlines()[-1])
  ours = jax_worker.main(TASK)
  assert len(timm['seconds']) == len(ours['seconds']) == 2
  assert timm['params'] == ours['params']
  assert timm.keys() == ours.keys()
