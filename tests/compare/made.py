"""Makes configs, metrics and work directories of DeiT III's runs."""

import functools
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from flax import traverse_util

from tests import run_files
from tests.recipes import small
from vit_jax import config as config_lib


@functools.cache
def _recipe() -> dict[str, Any]:
  """Returns the flat config of ViT-B/16 on ImageNet."""
  nested = json.loads(config_lib.to_json(small.config_of('deit3:B/16')))
  return traverse_util.flatten_dict(nested, sep='.')


def config(changes: Mapping[str, Any] = {}) -> dict[str, Any]:
  """Returns the flat config of a run, with these keys changed."""
  flat = _recipe() | changes
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
  flat = config(changes)
  nested = traverse_util.unflatten_dict(flat, sep='.')
  return run_files.leave(folder, *rows(flat, percents), config=nested)
