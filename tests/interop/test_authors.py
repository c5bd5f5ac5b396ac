"""Guards: the authors' code and ours compute the same, from the same arrays.

Run it with a checkout of their repository; it needs no TensorFlow, and prints
what differs. All is in float32, without dropout.

    git clone https://github.com/google-research/vision_transformer /tmp/vision_transformer
    AUTHORS=/tmp/vision_transformer python -m pytest -m authors tests/interop/test_authors.py
"""  # noqa: E501

import importlib
import os
import sys
import types
from unittest import mock

import jax
import numpy as np
import optax
import pytest

from tests import tiny_step
from tests.interop import tiny
from vit_jax import config as config_lib
from vit_jax import interop, losses, models
from vit_jax.losses import classification
from vit_jax.training import optimizer as optimizer_lib
from vit_jax.training import schedule as schedule_lib
from vit_jax.training import step as step_lib

pytestmark = pytest.mark.authors

CLASSES = 10
# Our options of a model, as keys of their configs.
KEYS = {
  'depth': 'transformer.num_layers',
  'representation_size': 'representation_size',
  'resnet_blocks': 'resnet.num_layers',
}


@pytest.fixture(scope='module')
def authors():
  """The authors' modules, by name; their package has the name of ours."""
  if 'AUTHORS' not in os.environ:
    pytest.skip("AUTHORS must name a checkout of the authors' repository.")
  package = types.ModuleType('vit_jax')
  package.__path__ = [os.path.join(os.environ['AUTHORS'], 'vit_jax')]
  # `utils`, which has their schedule, also writes logs by TensorFlow.
  stand_ins = {'vit_jax': package, 'tensorflow': types.ModuleType('tensorflow')}
  with mock.patch.dict(sys.modules, stand_ins):
    names = 'configs.models', 'models_vit', 'utils'
    return {n: importlib.import_module(f'vit_jax.{n}') for n in names}


def build(authors, folder, name, size, **options):
  """Returns both models, and random parameters of theirs as each reads them."""
  configs = authors['configs.models'].MODEL_CONFIGS
  config = configs[name.replace('/', '_')].copy_and_resolve_references()
  config.update_from_flattened_dict({KEYS[k]: v for k, v in options.items()})
  theirs = authors['models_vit'].VisionTransformer(CLASSES, **config)
  ours = models.build(name, num_classes=CLASSES, **options)
  images, rng = np.zeros((1, size, size, 3)), np.random.default_rng(0)
  init = lambda: theirs.init(jax.random.key(0), images, train=False)  # noqa: E731
  # None is zero: with initial values, many parts would have no effect.
  arrays = {
    name: np.float32(rng.normal(name.endswith('scale'), 0.05, x.shape))
    for name, x in tiny.flat(jax.eval_shape(init)['params']).items()
  }
  np.savez(folder / 'theirs.npz', **arrays)
  params = interop.load_npz(folder / 'theirs.npz', ours, image_size=size)
  return (theirs, tiny.unflat(arrays)), (ours, params)


def mean_loss(logits, labels):
  return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


@pytest.mark.parametrize(
  'name, size, options, bound',
  [
    ('ViT-B/16', 224, {'representation_size': 768}, 1e-5),
    ('ViT-B/32', 224, {}, 1e-5),
    # Rounding changes the sign of some inputs of the 49 ReLUs, and so what
    # passes back. The authors' own gradient is as far from that in float64.
    ('R50+ViT-B/16', 224, {}, 0.05),
    ('R50+ViT-B/16', 64, {'resnet_blocks': (1, 1, 1)}, 1e-5),
  ],
)
def test_logits_and_gradients(
  authors, name, size, options, bound, tmp_path, capsys
):
  (theirs, params), (ours, own) = build(
    authors, tmp_path, name, size, **options
  )
  images = np.random.default_rng(1).uniform(-1, 1, (2, size, size, 3))

  def slopes(apply, params):
    def loss(params):
      logits = apply({'params': params}, np.float32(images), train=False)
      return mean_loss(logits, np.arange(2)), logits

    return jax.jit(jax.grad(loss, has_aux=True))(params)

  wanted, logits = slopes(theirs.apply, params)
  found, own = slopes(lambda *args, **call: ours.apply(*args, **call)[0], own)
  differ = abs(own - logits).max()
  apart = optax.tree.norm(optax.tree.sub(found, wanted))
  apart /= optax.tree.norm(wanted)
  with capsys.disabled():
    print(
      f'\n{name} at {size} px: logits of deviation {logits.std():.2f} differ by'
      f' {differ:.1e}, gradients by {apart:.1e} of their norm'
    )
  assert logits.std() > 0.5
  assert differ < 1e-4
  assert apart < bound


# bfloat16, theirs, also rounds what differs by the last bit of float32.
@pytest.mark.parametrize(
  'dtype, bound', [('float32', 1e-6), ('bfloat16', 1e-4)]
)
def test_losses_of_fine_tuning(authors, dtype, bound, tmp_path, capsys):
  (theirs, params), (ours, own) = build(
    authors, tmp_path, 'ViT-Ti/16', 64, depth=4
  )
  rate = authors['utils'].create_learning_rate_schedule(60, 0.03, 'cosine', 10)
  # As in their train.py.
  sgd = optax.sgd(rate, momentum=0.9, accumulator_dtype=dtype)
  sgd = optax.chain(optax.clip_by_global_norm(1.0), sgd)

  @jax.jit
  def step(params, memory, batch):
    def loss(params):
      images = (batch['image'].astype('float32') - 127.5) / 127.5
      logits = theirs.apply({'params': params}, images, train=True)
      return mean_loss(logits, batch['label'])

    value, grads = jax.value_and_grad(loss)(params)
    updates, memory = sgd.update(grads, memory)
    return optax.apply_updates(params, updates), memory, value

  schedule = schedule_lib.build_schedule(
    config_lib.schedule('cosine', peak=0.03, warmup_steps=10), 60
  )
  options = dict(momentum=0.9, clip_norm=1.0, accumulator_dtype=dtype)
  optimizer = optimizer_lib.build_optimizer(
    config_lib.optimizer('sgd', **options), schedule
  )
  objective = classification.mean_loss(ours, losses.build('softmax'))
  own_step = tiny_step.train_step(
    objective, optimizer, schedule, jax.random.key(0), model=ours
  )
  state = step_lib.init_state(own, optimizer, polyak=False)
  memory, pairs, rng = sgd.init(params), [], np.random.default_rng(1)
  draw = lambda: tiny_step.batch(32, (64, 64), 3, CLASSES, rng=rng)  # noqa: E731
  for batch in 6 * [draw() for _ in range(10)]:
    params, memory, loss = step(params, memory, batch)
    state, metrics = own_step(state, batch)
    pairs.append((float(loss), float(metrics['loss'])))
  differ = max(abs(loss - own) for loss, own in pairs)
  with capsys.disabled():
    print(
      f'\n60 losses, {pairs[0][0]:.2f} to {pairs[-1][0]:.2f}, differ by'
      f' {differ:.1e} with momentum in {dtype}'
    )
  assert pairs[-1][0] < pairs[0][0] / 2
  assert differ < bound
