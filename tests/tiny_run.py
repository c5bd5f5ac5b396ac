"""Makes tiny runs for the tests, interrupts them, and compares them."""

import contextlib
import functools
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

import flax.traverse_util
import jax
import ml_collections
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental.compilation_cache import compilation_cache

from vit_jax import checkpoint
from vit_jax import config as config_lib
from vit_jax.runtime import installed
from vit_jax.workdir import metrics

# One block of width 16; the smallest named model, ViT-Ti, has 12 of width 192.
SIZES = dict(width=16, depth=1, heads=2, mlp_dim=32)
# Number of steps of `eventful_config`.
STEPS = 12


def tiny_config(
  changes: Mapping[str, Any] | None = None, **more
) -> ml_collections.ConfigDict:
  """Returns a config of two steps on 8x8 scans of two digits, on one device.

  It has no evaluation.

  Args:
    changes: keys to set and their values, such as `{'data.batch_size': 8}`.
    **more: further ones, such as `data__batch_size=8`.
  """
  config = config_lib.default()
  config.data.dataset = 'digits:01'
  config.data.preprocess = 'resize'
  config.data.batch_size = 16
  config.image_size, config.channels = (8, 8), 1
  config.total_steps = 2
  config.model.name = 'ViT-Ti/4'
  config.model.update(SIZES)
  config.log.tensorboard = False
  config.mesh.data = 1
  more = {key.replace('__', '.'): value for key, value in more.items()}
  config.update_from_flattened_dict(dict(changes or {}) | more)
  return config


def eventful_config(devices: int = 1) -> ml_collections.ConfigDict:
  """Returns a config of twelve steps that uses many features of the loop.

  These are dropout, accumulation, an average of the weights, evaluations and
  several checkpoints.
  """
  config = tiny_config(
    {
      'data.preprocess': 'resize|pad(1)|random_crop',
      'total_steps': STEPS,
      'model.dropout_rate': 0.1,
      'accumulation_steps': 2,
      'polyak.decay': 0.9,
      'polyak.start_step': 2,
      'checkpoint.every': 4,
      'log.every': 3,
      'mesh.data': devices,
    }
  )
  config.schedule = config_lib.schedule('cosine', peak=1e-2, warmup_steps=2)
  config.evals.test = config_lib.evaluation('test', every=6)
  return config


@contextlib.contextmanager
def keeping_programs(directory: pathlib.Path) -> Iterator[None]:
  """Keeps what JAX compiles in a directory, and reads it from there.

  Meanwhile, runs look only once for what is installed.
  """
  changes = {
    'jax_compilation_cache_dir': str(directory),
    'jax_persistent_cache_min_compile_time_secs': 0.1,
  }
  before = {name: getattr(jax.config, name) for name in changes}
  for options in (changes, before):
    for name, value in options.items():
      jax.config.update(name, value)
    compilation_cache.reset_cache()
    if options is changes:
      with mock.patch.object(installed, 'requirements', _requirements):
        yield


_requirements = functools.cache(installed.requirements)


class Death(BaseException):
  """Ends a run abruptly: no handler catches it."""


def die_at(monkeypatch, step: int) -> None:
  """Makes a run die just after it has written the metrics of a step."""
  write = metrics.MetricWriter.write

  def write_and_die(self, at, values):
    write(self, at, values)
    if at == step:
      raise Death

  monkeypatch.setattr(metrics.MetricWriter, 'write', write_and_die)


def saved_state(workdir) -> dict[str, np.ndarray]:
  """Returns all arrays of a run's newest checkpoint, by name."""
  path = checkpoint.find(workdir) / 'default'
  with contextlib.closing(ocp.PyTreeCheckpointHandler()) as handler:
    as_numpy = jax.tree.map(
      lambda _: ocp.RestoreArgs(restore_type=np.ndarray),
      handler.metadata(path).tree,
    )
    tree = handler.restore(
      path, args=ocp.args.PyTreeRestore(restore_args=as_numpy)
    )
  flat, _ = jax.tree_util.tree_flatten_with_path(tree)
  return {jax.tree_util.keystr(name): np.asarray(x) for name, x in flat}


def weights(workdir) -> dict[str, np.ndarray]:
  """Returns a run's weights, by names such as `head/kernel`."""
  params, _ = checkpoint.read_params(workdir)
  return flax.traverse_util.flatten_dict(params, sep='/')


def assert_same_but(flat, source, *, but) -> None:
  """Asserts that `flat` equals `source`, apart from the names in `but`."""
  assert but <= flat.keys()
  for name in flat.keys() - but:
    np.testing.assert_array_equal(flat[name], source[name], err_msg=name)


def assert_same_state(workdir, expected_workdir) -> None:
  """Asserts that parameters, optimizer state and averages are bitwise equal."""
  actual, expected = saved_state(workdir), saved_state(expected_workdir)
  assert actual.keys() == expected.keys()
  for name, value in expected.items():
    assert actual[name].dtype == value.dtype, name
    assert actual[name].tobytes() == value.tobytes(), name


def rows_but_times(workdir) -> list[dict[str, Any]]:
  """Returns the rows of metrics.jsonl without timings."""
  return [metrics.repeatable(row) for row in metrics.read(workdir)]
