"""Guards: what trains, by how much, and that the rest stays bitwise."""

import re

import flax.traverse_util
import jax
import numpy as np
import optax
import pytest

from tests import tiny_run
from vit_jax import checkpoint, interop, models, sharding
from vit_jax import config as config_lib
from vit_jax.models import lora
from vit_jax.training import evaluate, train, tuning
from vit_jax.training import program as program_lib

QUERY = 'Transformer/encoderblock_0/MultiHeadDotProductAttention_0/query/kernel'


def _config(**changes):
  config = tiny_run.tiny_config({'model.depth': 2, 'total_steps': 3})
  config.optimizer = config_lib.adam(weight_decay=0.1, clip_norm=1.0)
  config.schedule = config_lib.schedule('constant', peak=1e-2, warmup_steps=0)
  config.num_classes = 2
  config.update_from_flattened_dict(
    {key.replace('__', '.'): value for key, value in changes.items()}
  )
  return config


def _program(**changes):
  config = _config(**changes)
  config.model.dtype = 'float32'
  return program_lib.Program(config, sharding.build(**config.mesh))


def _flat(tree):
  return flax.traverse_util.flatten_dict(tree, sep='/')


def _run(program, steps=3):
  """Returns the flat parameters before and after some steps, and the state."""
  rng = np.random.default_rng(0)
  state = program.init_state()
  before = jax.device_get(_flat(state.params))
  for _ in range(steps):
    batch = {
      'image': rng.integers(0, 256, (16, 8, 8, 1), dtype=np.uint8),
      'label': rng.integers(0, 2, 16, dtype=np.int32),
      'mask': np.ones(16, bool),
      'unreadable': np.zeros(16, bool),
    }
    state, metrics = program.train_step(state, batch)
  assert np.isfinite(metrics['loss'])
  return before, jax.device_get(_flat(state.params)), jax.device_get(state)


def _moved(before, after):
  return {n for n in before if before[n].tobytes() != after[n].tobytes()}


@pytest.mark.parametrize(
  'changes, expected',
  [
    ({'tuning.train': 'head'}, r'head/.*'),
    (
      {'tuning.train': '.*bias|head/kernel', 'optimizer': config_lib.sgd()},
      r'.*bias|head/kernel',
    ),
    (
      {'tuning.freeze': 'Transformer/encoderblock_[01]', 'model.scan': True},
      r'embedding/.*|cls|Transformer/(encoder_norm|posembed_input)/.*|head/.*',
    ),
    (
      {'lora.rank': 2, 'lora.targets': ('mlp',), 'tuning.train': 'cls|head'},
      r'lora/.*/MlpBlock_0/Dense_[01]/kernel/[ab]|cls|head/.*',
    ),
  ],
)
def test_only_what_trains_moves_and_has_a_state(changes, expected):
  config = _config(polyak__decay=0.9)
  config.model.dtype = 'float32'
  config.update_from_flattened_dict(changes)
  if 'optimizer' in changes:
    config.optimizer = changes['optimizer']
  program = program_lib.Program(config, sharding.build(**config.mesh))
  before, after, state = _run(program)
  trained = {name for name in before if re.fullmatch(expected, name)}
  assert _moved(before, after) == trained
  # The average and each moment hold what trains, and nothing else.
  assert _flat(state.ema_params).keys() == trained
  for moments in ('mu', 'nu', 'trace'):
    for found in optax.tree.get_all_with_path(state.opt_state, moments):
      assert _flat(found[1]).keys() == trained
  sizes = sum(x.size for x in jax.tree.leaves(state.opt_state))
  kinds = 1 if config.optimizer.name == 'sgd' else 2
  assert sizes <= kinds * sum(before[n].size for n in trained) + 2


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


def test_an_average_of_what_trains_is_evaluated_with_what_is_frozen():
  program = _program(tuning__train='head', polyak__decay=0.5)
  before, after, state = _run(program, steps=1)
  found = _flat(program.eval_params(state.params, state.ema_params))
  assert found.keys() == before.keys()
  for name, x in before.items():
    np.testing.assert_allclose(found[name], (x + after[name]) / 2, rtol=1e-6)
  untuned = _program()
  state = untuned.init_state()
  assert untuned.eval_params(state.params, {}) is state.params
  assert untuned.eval_params(state.params, state.params) is state.params


def test_evaluated_additions_are_merged():
  program = _program(lora__rank=2, lora__alpha=6.0)
  _, after, state = _run(program)
  found = _flat(program.eval_params(state.params, state.ema_params))
  assert found.keys() == {n for n in after if not n.startswith('lora/')}
  a, b = (after[f'lora/{QUERY}/{part}'] for part in 'ab')
  expected = after[QUERY] + 3.0 * np.einsum('ir,rhk->ihk', a, b)
  np.testing.assert_allclose(found[QUERY], expected, rtol=1e-6, atol=1e-7)


# Layer-wise decay ------------------------------------------------------------


def _factors(name, **options):
  model = models.build(name, num_classes=2, **options)
  images = jax.ShapeDtypeStruct((1, 32, 32, 3), np.float32)
  params = jax.eval_shape(model.init, jax.random.key(0), images)['params']
  shapes = {k: x.shape for k, x in _flat(params).items()}
  return tuning.layer_factors(0.5, shapes)


@pytest.mark.parametrize('scan', [False, True])
def test_rates_fall_by_layer_as_in_beit(scan):
  params = _program(model__scan=scan).shapes.params
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
  # An addition has its kernel's rate.
  part = f'lora/{QUERY}/a'
  found = tuning.layer_factors(0.5, {part: (16, 2), QUERY: (16, 2, 8)})
  assert found[part] == found[QUERY] == 0.5


def test_the_layers_of_a_resnet_are_its_units():
  found = _factors('BiT-R50x1', blocks=(1, 2))
  assert found['conv_root/kernel'] == 0.5**4
  assert found['block1/unit1/conv1/kernel'] == 0.5**3
  assert found['block2/unit1/gn1/scale'] == 0.5**2
  assert found['block2/unit2/conv3/kernel'] == 0.5
  assert found['gn_final/scale'] == found['head/kernel'] == 1.0


def test_a_hybrids_vit_follows_its_resnet():
  options = dict(tiny_run.SIZES, resnet_blocks=(1, 1), patch_size=(1, 1))
  found = _factors('R50+ViT-B/16', **options)
  assert found['gn_root/scale'] == 0.5**5
  assert found['block1/unit1/conv1/kernel'] == 0.5**4
  assert found['block2/unit1/conv1/kernel'] == 0.5**3
  assert found['embedding/kernel'] == found['cls'] == 0.5**2
  assert found[QUERY] == 0.5
  assert found['Transformer/encoder_norm/scale'] == 1.0


# Runs ------------------------------------------------------------------------


# Slow: `test_loop` resumes a run; this one adds the state of LoRA, blocks in a
# loop and rates by layer.
@pytest.mark.slow
def test_an_interrupted_run_ends_bitwise_the_same(tmp_path, monkeypatch):
  config = tiny_run.eventful_config()
  config.model.update(scan=True, remat='full')
  config.lora.rank, config.tuning.layer_decay = 2, 0.7
  train.train_and_evaluate(config, tmp_path / 'whole')
  with monkeypatch.context() as patch:
    tiny_run.die_at(patch, 6)
    with pytest.raises(tiny_run.Death):
      train.train_and_evaluate(config, tmp_path / 'torn')
  train.train_and_evaluate(config, tmp_path / 'torn')
  tiny_run.assert_same_state(tmp_path / 'torn', tmp_path / 'whole')


def test_the_default_state_is_as_before():
  program = _program()
  state, params = program.shapes, program.shapes.params
  assert lora.FOLDER not in params
  expected = jax.eval_shape(program.optimizer.init, params)
  assert jax.tree.structure(state.opt_state) == jax.tree.structure(expected)
  assert program.tuning.split(params)[0] is params


@pytest.mark.gate
def test_lora_on_other_weights_ends_in_plain_weights(tmp_path):
  base = _config()
  train.train_and_evaluate(base, tmp_path / 'base')
  config = _config(
    init__checkpoint=str(tmp_path / 'base'), lora__rank=2, polyak__decay=0.5
  )
  config.evals.test = config_lib.evaluation('test')
  values = train.train_and_evaluate(config, tmp_path / 'lora')
  start, _ = checkpoint.read_params(tmp_path / 'base')
  start, final, saved = (
    _flat(tree)
    for tree in (
      start,
      checkpoint.read_params(tmp_path / 'lora/final')[0],
      # The state has additions, which the reader merges.
      checkpoint.read_params(tmp_path / 'lora/checkpoints')[0],
    )
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
  path = tmp_path / 'lora.npz'
  interop.save_npz(path, weights.params, weights.model)
  reloaded = _flat(interop.load_npz(path, weights.model, (8, 8)))
  for name, x in final.items():
    np.testing.assert_array_equal(reloaded[name], x)
  assert lora.FOLDER not in weights.params


# Errors ----------------------------------------------------------------------


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
    _program(**changes)
