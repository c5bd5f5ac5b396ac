"""Guards: the step of timm's model that ours is compared with."""

import json
import pathlib
import subprocess
import sys

import pytest

from vit_jax import accounting, models

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.hf
def test_the_models_are_equal():
  words = '--device=cpu --num_classes=10 --batch_size=4 --image_size=32'
  turns = '--rounds=3 --steps=1 --warmup=1'
  done = subprocess.run(
    [sys.executable, '-m', 'benchmarks.timm_step', 'ViT-Ti/16']
    + [*words.split(), *turns.split()],
    cwd=ROOT,
    capture_output=True,
    check=True,
    text=True,
  )
  found = json.loads(done.stdout)
  assert len(found['values']) == 3
  assert found['step_ms'] == sorted(found['values'])[1]
  assert found['images_per_sec'] == pytest.approx(4000 / found['step_ms'])
  ours = accounting.account(models.build('ViT-Ti/16', num_classes=10), 32)
  assert found['params'] == ours.params
