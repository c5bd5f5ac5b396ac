"""Makes configs, metrics and work directories of DeiT III's runs."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

from flax import traverse_util

# ViT-B/16 on ImageNet, from README_revenge.md of facebookresearch/deit.
DEIT3 = {
  'model.name': 'ViT-B/16',
  'model.layer_scale': 1e-4,
  'model.stochastic_depth': 0.2,
  'model.stochastic_depth_rule': 'uniform',
  'num_classes': 1000,
  'epochs': 800.0,
  'total_steps': 0,
  'image_size': [192, 192],
  'data.dataset': 'arrayrecord:/data/imagenet',
  'data.num_examples': 1_281_167,
  'data.examples_per_epoch': None,
  'data.batch_size': 2048,
  'data.repeats': 3,
  'optimizer.name': 'lamb',
  'optimizer.weight_decay': 0.05,
  'schedule.name': 'cosine',
  'schedule.peak': 3e-3,
  'loss.name': 'sigmoid',
  'loss.label_smoothing': 0.0,
  'mixup_alpha': 0.8,
  'cutmix_alpha': 1.0,
  'polyak.decay': 0.0,
  'init.checkpoint': '',
}


def config(changes: Mapping[str, Any] = {}) -> dict[str, Any]:
  """Returns the flat config of a run, with these keys changed."""
  flat = DEIT3 | changes
  if not flat['total_steps']:
    epoch = flat['data.num_examples'] / flat['data.batch_size']
    flat['total_steps'] = int(flat['epochs'] * epoch)
  return flat


def rows(
  flat: Mapping[str, Any],
  percents: Mapping[float, float],
  metric: str = 'validation/accuracy',
) -> list[dict[str, float]]:
  """Returns a run's metrics; `percents` has an accuracy for some epochs."""
  epoch = flat['data.num_examples'] / flat['data.batch_size']
  return [
    {'step': round(at * epoch), metric: percent / 100}
    for at, percent in percents.items()
  ]


def run(
  folder: pathlib.Path,
  percents: Mapping[float, float],
  changes: Mapping[str, Any] = {},
) -> pathlib.Path:
  """Writes the work directory of a run."""
  folder.mkdir(parents=True)
  flat = config(changes)
  nested = traverse_util.unflatten_dict(flat, sep='.')
  (folder / 'config.json').write_text(json.dumps(nested))
  text = ''.join(json.dumps(row) + '\n' for row in rows(flat, percents))
  (folder / 'metrics.jsonl').write_text(text)
  return folder
