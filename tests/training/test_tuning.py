"""Guards: a program's state; what trains, by how much; the rest stays."""

import contextlib
import functools
import re

import jax
import numpy as np
import optax
import pytest

from tests import tiny_run, tiny_step
from tests.interop.tiny import flat as _flat
from vit_jax import config as config_lib
from vit_jax import data, interop, models, sharding
from vit_jax.config import inputs
from vit_jax.data import pipeline
from vit_jax.models import lora
from vit_jax.training import evaluate, train, tuning
from vit_jax.training import program as program_lib

QUERY = 'Transformer/encoderblock_0/MultiHeadDotProductAttention_0/query/kernel'


def _config(**changes):
  config = tiny_run.tiny_config({'total_steps': 3, 'num_classes': 2}, **changes)
  config.optimizer = config_lib.optimizer(
    'adamw', weight_decay=0.1, clip_norm=1.0
  )
  config.schedule = config_lib.schedule('constant', peak=1e-2, warmup_steps=0)
  return config


def _program(**changes):
  config = _config(**changes)
  config.model.dtype = 'float32'
  return program_lib.Program(config, sharding.build(**config.mesh))


# The program of a config -----------------------------------------------------


def test_another_seed_has_other_weights_of_the_same_program():
  built = [_program(seed=seed) for seed in (0, 1)]
  # Equal programs, so that the compilation cache serves any seed.
  one, two = (
    jax.jit(each._fresh_state).lower(each.params_key).as_text()
    for each in built
  )
  assert one == two
  name = 'embedding/kernel'
  first, second = (_flat(each.init_params([name]))[name] for each in built)
  assert np.abs(first - second).max() > 0.1 * np.std(first)


def test_named_parameters_are_those_of_all():
  built = _program(mesh__data=1, mesh__fsdp=8)
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


def test_initial_state_is_that_of_one_compiled_program():
  built = _program(model__scan=True, polyak__decay=0.5)
  expected = jax.jit(built._fresh_state)(built.params_key)
  found = built.init_state()
  for x, y in zip(*map(jax.tree.leaves, (expected, found)), strict=True):
    assert x.dtype == y.dtype
    np.testing.assert_allclose(x, y, rtol=1e-6)
  # No buffer is there twice: it could not be donated twice.
  jax.jit(lambda state: state, donate_argnums=0)(found)


@pytest.mark.parametrize(
  'dataset, max_labels', [('shapes:shape', 1), ('shapes:all', 2)]
)
def test_batches_of_the_data_have_the_shapes_that_compile(dataset, max_labels):
  source = data.open_source(dataset)
  config = _config(channels=3, data__max_labels=max_labels)
  config.num_classes = source.info.num_classes
  config.model.dtype = 'float32'
  built = program_lib.Program(
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


# What trains -----------------------------------------------------------------


def _run(program):
  """Returns the flat parameters before and after each step, and the state."""
  rng = np.random.default_rng(0)
  state = program.init_state()
  history = [jax.device_get(_flat(state.params))]
  for _ in range(3):
    batch = tiny_step.batch(16, rng=rng)
    state, metrics = program.train_step(state, batch)
    history.append(jax.device_get(_flat(state.params)))
  assert np.isfinite(metrics['loss'])
  return history, jax.device_get(state)


@pytest.mark.parametrize(
  'changes, expected',
  [
    (
      {'tuning.freeze': 'Transformer/encoderblock_[01]', 'model.scan': True}
      | {'model.depth': 2},
      r'embedding/.*|cls|Transformer/(encoder_norm|posembed_input)/.*|head/.*',
    ),
    (
      {'lora.rank': 2, 'lora.alpha': 6.0, 'lora.targets': ('mlp',)}
      | {'tuning.train': 'cls|head'},
      r'lora/.*/MlpBlock_0/Dense_[01]/kernel/[ab]|cls|head/.*',
    ),
  ],
)
def test_only_what_trains_moves_and_has_a_state(changes, expected):
  config = _config(polyak__decay=0.5)
  config.model.dtype = 'float32'
  config.update_from_flattened_dict(changes)
  program = program_lib.Program(config, sharding.build(**config.mesh))
  history, state = _run(program)
  before, after = history[0], history[-1]
  trained = {name for name in before if re.fullmatch(expected, name)}
  moved = {n for n in before if before[n].tobytes() != after[n].tobytes()}
  assert moved == trained
  # The average and each moment hold what trains, and nothing else.
  assert _flat(state.ema_params).keys() == trained
  for moments in ('mu', 'nu'):
    for found in optax.tree.get_all_with_path(state.opt_state, moments):
      assert _flat(found[1]).keys() == trained
  sizes = sum(x.size for x in jax.tree.leaves(state.opt_state))
  assert sizes <= 2 * sum(before[n].size for n in trained) + 2
  # The average is evaluated, with what is frozen and with merged additions.
  found = _flat(program.eval_params(state.params, state.ema_params))
  average = functools.reduce(
    lambda average, new: {k: (average[k] + new[k]) / 2 for k in new}, history
  )
  assert found.keys() == {n for n in average if not n.startswith('lora/')}
  for name, x in found.items():
    expected = average[name]
    if f'lora/{name}/a' in average:
      a, b = (average[f'lora/{name}/{part}'] for part in 'ab')
      expected = expected + 3.0 * a @ b
    np.testing.assert_allclose(x, expected, rtol=1e-5, atol=1e-7, err_msg=name)


def test_without_tuning_nothing_is_split():
  program = _program()
  state, params = program.shapes, program.shapes.params
  assert lora.FOLDER not in params
  expected = jax.eval_shape(program.optimizer.init, params)
  assert jax.tree.structure(state.opt_state) == jax.tree.structure(expected)
  assert program.tuning.split(params)[0] is params
  assert program.eval_params(params, {}) is params
  assert program.eval_params({}, params) is params


def test_no_gradient_is_computed_for_what_is_frozen():
  def products(**changes):
    program = _program(**changes)
    step = jax.make_jaxpr(program.train_step)(
      program.abstract_state, program.abstract_batch
    )
    return str(step).count('dot_general')

  # The forward pass, and the gradient of the head's kernel.
  program = _program()
  forward = str(
    jax.make_jaxpr(lambda p, x: program.model.apply({'params': p}, x)[0])(
      program.shapes.params, np.zeros((16, 8, 8, 1), np.float32)
    )
  ).count('dot_general')
  assert products(tuning__train='head') == forward + 1
  assert products() > 2 * forward


# Layer-wise decay ------------------------------------------------------------


@pytest.mark.parametrize('scan', [False, True])
def test_rates_fall_by_layer_as_in_beit(scan):
  params = _program(model__scan=scan, model__depth=2).shapes.params
  # depth + 1 - layer: 3 for the embeddings, 2 and 1 for the blocks, 0 behind.
  expected = {
    'embedding': 0.125,
    'cls': 0.125,
    'posembed_input': 0.125,
    'encoderblock_0': 0.25,
    'encoderblock_1': 0.5,
    'encoderblock': np.array([0.25, 0.5]),
    'encoder_norm': 1.0,
    'head': 1.0,
  }
  scale = tuning.scale_by_layer(0.5, params)
  ones = jax.tree.map(lambda x: np.ones(x.shape, np.float32), params)
  updates, _ = scale.update(ones, scale.init(ones))
  for name, update in _flat(updates).items():
    words = name.split('/')
    factor = np.asarray(
      expected[words[1] if words[0] == 'Transformer' else words[0]]
    )
    factor = factor.reshape(factor.shape + (1,) * (update.ndim - factor.ndim))
    np.testing.assert_allclose(
      update, np.broadcast_to(factor, update.shape), rtol=1e-6, err_msg=name
    )
  # Tokens are the first layer, and what follows the blocks is the last.
  names = 'dist', 'registers', QUERY, 'fc_norm/scale', 'head_dist/kernel'
  found = tuning.layer_factors(0.5, dict.fromkeys(names, (16,)))
  assert list(found.values()) == [0.25, 0.25, 0.5, 1.0, 1.0]
  # An addition has its kernel's rate.
  part = f'lora/{QUERY}/a'
  found = tuning.layer_factors(0.5, {part: (16, 2), QUERY: (16, 2, 8)})
  assert found[part] == found[QUERY] == 0.5


def test_a_hybrids_vit_follows_the_units_of_its_resnet():
  options = dict(tiny_run.SIZES, resnet_blocks=(1, 2), patch_size=(1, 1))
  model = models.build('R50+ViT-B/16', num_classes=2, **options)
  images = jax.ShapeDtypeStruct((1, 32, 32, 3), np.float32)
  params = jax.eval_shape(model.init, jax.random.key(0), images)['params']
  found = tuning.layer_factors(
    0.5, {k: x.shape for k, x in _flat(params).items()}
  )
  assert found['gn_root/scale'] == found['conv_root/kernel'] == 0.5**6
  assert found['block1/unit1/conv1/kernel'] == 0.5**5
  assert found['block2/unit1/gn1/scale'] == 0.5**4
  assert found['block2/unit2/conv3/kernel'] == 0.5**3
  assert found['embedding/kernel'] == found['cls'] == 0.5**2
  assert found[QUERY] == 0.5
  assert found['Transformer/encoder_norm/scale'] == found['head/kernel'] == 1.0


# Runs ------------------------------------------------------------------------


@pytest.mark.gate
def test_lora_on_other_weights_ends_in_plain_weights(finished, tmp_path):
  config = _config(
    init__checkpoint=str(finished[0]), lora__rank=2, polyak__decay=0.5
  )
  config.evals.test = config_lib.evaluation('test')
  values = train.train_and_evaluate(config, tmp_path / 'lora')
  # The state has additions, which the reader merges.
  start, final, saved = map(
    tiny_run.weights,
    (finished[0], tmp_path / 'lora/final', tmp_path / 'lora/checkpoints'),
  )
  assert final.keys() == saved.keys() == start.keys()
  moved = {
    name for name in start if not np.array_equal(start[name], final[name])
  }
  ends = ('query/kernel', 'value/kernel', 'head/kernel', 'head/bias')
  assert moved == {name for name in start if name.endswith(ends)}
  for name, x in final.items():
    np.testing.assert_allclose(saved[name], x, rtol=1e-6, atol=1e-7)
  # What was evaluated is what was saved, and every reader knows it.
  loaded = _config(
    init__checkpoint=str(tmp_path / 'lora'), init__new_head=False
  )
  loaded.evals.test = config.evals.test
  again = evaluate.evaluate_only(loaded, tmp_path / 'evaluated')
  assert again['test/loss'] == pytest.approx(values['test/loss'], rel=1e-5)
  weights = interop.read(tmp_path / 'lora')
  assert lora.FOLDER not in weights.params
  for name, x in final.items():
    np.testing.assert_array_equal(_flat(weights.params)[name], x)


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'tuning__train': 'heads'}, r"train='heads' matches no.*encoderblock_0"),
    ({'tuning__freeze': '.*'}, r'freezes all parameters'),
    ({'tuning__freeze': 'a('}, r"'a\(' is no regular expression"),
    ({'tuning__freeze': 'cls', 'tuning__train': 'head'}, r"'cls' does not go"),
    ({'tuning__freeze': 'cls', 'lora__rank': 2}, r'does not go with lora.rank'),
    (
      {'tuning__train': 'Transformer/encoderblock_1', 'model__scan': True},
      r'only 1 of the 2 blocks.*model.scan=False',
    ),
    ({'tuning__train': 'cls'}, r'freezes the new head.*init.new_head=False'),
    ({'lora__rank': 2, 'lora__targets': ('q',)}, r"unknown \['q'\]"),
  ],
)
def test_patterns_that_cannot_be_meant(changes, message):
  with pytest.raises(ValueError, match=message):
    _program(model__depth=2, **changes)
