"""Guards: parameters depend on the seed; the compiled program does not."""

import contextlib
import dataclasses
import types

import flax
import jax
import numpy as np
import pytest

from tests.tiny_run import tiny_config
from vit_jax import config as config_lib
from vit_jax import data, sharding
from vit_jax.config import inputs, platforms
from vit_jax.data import pipeline
from vit_jax.training import program


def _program(seed=0, fsdp=1, **changes):
  config = tiny_config(
    {
      'seed': seed,
      'total_steps': 9,
      'channels': 3,
      'data.batch_size': 8,
      'mesh.data': -1,
    }
    | {name.replace('__', '.'): value for name, value in changes.items()}
  )
  config.optimizer = config_lib.sgd()
  config.schedule = config_lib.schedule('constant', peak=0, warmup_steps=0)
  config = config_lib.resolve(config, num_examples=99, num_classes=8)
  config.mesh.fsdp = fsdp
  layout = sharding.build(**config.mesh)
  return program.Program(config, layout)


def _flat(params):
  return flax.traverse_util.flatten_dict(params, sep='/')


def test_another_seed_has_other_weights_of_the_same_program():
  built = [_program(seed) for seed in (0, 1)]
  # Equal programs, so that the compilation cache serves any seed.
  one, two = (
    jax.jit(each._fresh_state).lower(each.params_key).as_text()
    for each in built
  )
  assert one == two
  first, second = (_flat(each.init_state().params) for each in built)
  assert first.keys() == second.keys()
  name = 'embedding/kernel'
  assert np.abs(first[name] - second[name]).max() > 0.1 * np.std(first[name])


def test_the_step_has_the_options_of_its_platform(monkeypatch):
  jax.devices()  # Reads XLA_FLAGS, and would end at the unknown flags below.

  def options(platform, count, kind=''):
    device = types.SimpleNamespace(platform=platform, device_kind=kind)
    return platforms.compiler_options(
      types.SimpleNamespace(local_devices=[device], size=count)
    )

  assert options('cpu', 8) == {}
  name = 'xla_enable_async_all_gather'
  assert options('tpu', 1, 'TPU v3') == {name: 'true'}
  memory = {'xla_tpu_scoped_vmem_limit_kib': 65536}
  assert options('tpu', 1, 'TPU v5 lite') == {name: 'true'} | memory
  monkeypatch.setenv('LIBTPU_INIT_ARGS', f'--xla_a=1 --{name}=false')
  assert options('tpu', 1) == {}  # The user decides.

  known = 'xla_gpu_all_gather', 'xla_gpu_all_reduce'
  monkeypatch.setattr(
    platforms, '_is_known', lambda name, *more: name.startswith(known)
  )
  monkeypatch.delenv('XLA_FLAGS', raising=False)
  assert options('gpu', 1) == {}
  gather, reduce = (f'{name}_combine_threshold_bytes' for name in known)
  piece = 16 * 2**20
  assert options('gpu', 8) == {gather: piece, reduce: piece}
  monkeypatch.setenv('XLA_FLAGS', f'--{gather}=1 --xla_b')
  assert options('gpu', 8) == {reduce: piece}

  seen = []
  monkeypatch.setattr(
    platforms, 'compiler_options', lambda mesh: {str(mesh.size): 'of a test'}
  )
  monkeypatch.setattr(
    program.jax,
    'jit',
    lambda step, **options: seen.append(options['compiler_options']),
  )
  _ = _program().train_step
  assert seen == [{'8': 'of a test'}]


def test_an_option_that_the_compiler_does_not_know_ends_no_run(caplog):
  device = jax.devices()[0]
  assert platforms._is_known('xla_embed_ir_in_executable', False, device)
  assert not platforms._is_known('xla_no_such_option', 1, device)
  assert 'does not take xla_no_such_option=1' in caplog.text


def test_named_parameters_are_those_of_all():
  built = _program(fsdp=8)
  every = _flat(built.init_params())
  assert every.keys() == _flat(built.shapes.params).keys()
  some = _flat(built.init_params(['cls', 'embedding/kernel']))
  assert some.keys() == {'cls', 'embedding/kernel'}
  for name, array in some.items():
    np.testing.assert_allclose(array, every[name], rtol=1e-6)
    assert array.sharding == every[name].sharding
  assert not some['embedding/kernel'].sharding.is_fully_replicated
  with pytest.raises(KeyError, match='hat'):
    built.init_params(['hat'])


@pytest.mark.parametrize('scan', [False, True])
def test_initial_state_is_that_of_one_compiled_program(scan):
  built = _program(model__scan=scan, polyak__decay=0.5, mesh__data=1)
  expected = jax.jit(built._fresh_state)(built.params_key)
  found = built.init_state()
  for x, y in zip(*map(jax.tree.leaves, (expected, found)), strict=True):
    assert x.dtype == y.dtype
    np.testing.assert_allclose(x, y, rtol=1e-6)
  # No buffer is there twice: it could not be donated twice.
  jax.jit(lambda state: state, donate_argnums=0)(found)


@pytest.mark.parametrize('dataset', ['shapes:shape', 'shapes:all'])
@pytest.mark.parametrize('max_labels', [1, 2])
def test_batches_of_the_data_have_the_shapes_that_compile(
  dataset, max_labels, monkeypatch
):
  source = data.open_source(dataset)
  if dataset == 'shapes:all' and max_labels == 1:  # Lists of a single label.
    read = source.read

    def read_one(*place):
      record = read(*place)
      return dataclasses.replace(record, label=record.label[:1])

    monkeypatch.setattr(source, 'read', read_one)
  config = tiny_config(
    {
      'data.dataset': dataset,
      'data.max_labels': max_labels,
      'channels': 3,
      'total_steps': 3,
    }
  )
  config = config_lib.resolve(
    config, num_examples=99, num_classes=source.info.num_classes
  )
  built = program.Program(
    config,
    sharding.build(**config.mesh),
    multi_label=source.info.multi_label,
  )
  batches = pipeline.train_batches(
    data.View(source, 'train[:32]'),
    inputs.parse_preprocess(config, config.data.preprocess),
    batch_size=config.data.batch_size,
    seed=0,
    **inputs.reading(config),
  )
  with contextlib.closing(batches):
    batch = next(iter(batches))
  assert {name: (x.shape, x.dtype) for name, x in batch.items()} == {
    name: (x.shape, x.dtype) for name, x in built.abstract_batch.items()
  }
