"""Guards: masked autoencoders compute what transformers' do, and its gradient.

The largest differences seen are those of the base size: 6e-6 in the encoder's
output, 4e-6 in the predictions, and 3e-6 of a gradient's norm.
"""

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')

from vit_jax import config as config_lib  # noqa: E402
from vit_jax import models  # noqa: E402
from vit_jax.interop import families  # noqa: E402
from vit_jax.losses import corruption, masked_patch  # noqa: E402
from vit_jax.models.vit import MASK  # noqa: E402

pytestmark = pytest.mark.hf

BATCH = 2
TINY = dict(width=32, depth=2, heads=2, mlp_dim=48, patch_size=4)
# Parts of a decoder -> parts of an encoder that have a rule.
SIMILAR = {
  'decoder.decoder_layers': 'vit.layers',
  'decoder.decoder_norm': 'vit.layernorm',
  'decoder.decoder_embed': 'vit.pooler.dense',
  'decoder.decoder_pred': 'classifier',
}
OURS = {'pre_logits': 'embedding', 'head': 'patch_head'}


def theirs_of(model, side, loss):
  """Returns their model with our model's sizes and random parameters."""
  torch.manual_seed(0)
  theirs = transformers.ViTMAEForPreTraining(
    transformers.ViTMAEConfig(
      hidden_size=model.width,
      num_hidden_layers=model.depth,
      num_attention_heads=model.heads,
      intermediate_size=model.mlp_dim,
      layer_norm_eps=1e-6,
      image_size=side,
      patch_size=model.patch_size[0],
      decoder_num_hidden_layers=loss.decoder_depth,
      decoder_hidden_size=loss.decoder_width,
      decoder_num_attention_heads=loss.decoder_heads,
      decoder_intermediate_size=4 * loss.decoder_width,
      mask_ratio=loss.mask,
      norm_pix_loss=loss.normalise,
    )
  ).eval()
  # This version of transformers leaves the tables of a new model at 0, but has
  # the functions that fill them.
  embeddings = theirs.vit.embeddings
  for x in (embeddings.patch_embeddings.projection, *theirs.parameters()):
    x._is_hf_initialized = False
  embeddings.initialize_weights()
  theirs.decoder.initialize_weights((side // model.patch_size[0]) ** 2)
  assert theirs.decoder.decoder_pos_embed.any()
  for name, x in theirs.named_parameters():
    if 'pos' not in name:  # Biases and norms are no longer 0 and 1.
      x.data += 0.02 * torch.randn_like(x)
  return theirs


def ours_of(state, heads, decoder_heads):
  """Returns our names and shapes of a state of transformers."""
  arrays = {k: x.numpy() for k, x in state.items() if 'pos' not in k}
  ours = {'decoder/mask_embedding': arrays.pop('decoder.mask_token')[0, 0]}
  decoder = {
    name.replace(theirs, similar): arrays.pop(name)
    for theirs, similar in SIMILAR.items()
    for name in [*arrays]
    if name.startswith(theirs)
  }
  for name, x in families.OTHERS['vit'].read(decoder, decoder_heads).items():
    first, _, rest = name.partition('/')
    ours[f'decoder/{OURS.get(first, first)}/{rest}'] = x
  ours |= families.OTHERS['vit'].read(arrays, heads)
  return flax.traverse_util.unflatten_dict(ours, sep='/')


@pytest.mark.parametrize(
  'sizes, side, loss',
  [
    (TINY, 24, dict(decoder_depth=2, decoder_width=16, decoder_heads=2)),
    (TINY, 24, dict(mask=0.4, decoder_depth=1, normalise=False)),
    ({}, 224, {}),
  ],
  ids=['tiny', 'pixels', 'base'],
)
def test_outputs_loss_and_gradients_are_equal(sizes, side, loss, monkeypatch):
  options = sizes | dict(gelu='exact', position_embedding='sincos2d_mae')
  model = models.build('ViT-B/16', num_classes=1, **options)
  config = config_lib.default()
  config.image_size, config.loss = (side, side), config_lib.mae(**loss)
  task = masked_patch.build(config, model)
  theirs = theirs_of(model, side, config.loss)
  heads = model.heads, config.loss.decoder_heads
  params = ours_of(theirs.state_dict(), *heads)

  rng = np.random.default_rng(0)
  images = rng.integers(0, 256, (BATCH, side, side, 3), np.uint8)
  pixels = torch.from_numpy(
    images.transpose(0, 3, 1, 2) / np.float32(127.5) - 1
  )
  noise = torch.from_numpy(rng.random((BATCH, task.corruption.length), 'f'))
  found = theirs(pixels, noise=noise)
  found.loss.backward()
  with torch.no_grad():
    encoded = theirs.vit(pixels, noise=noise).last_hidden_state.numpy()
  # They keep the patches of the least noise, in its order.
  order = noise.argsort(dim=1).numpy()[:, : task.model.decoder.visible]
  hidden = np.ones(noise.shape, bool)
  np.put_along_axis(hidden, order, False, axis=1)
  np.testing.assert_array_equal(found.mask.numpy(), hidden)
  order = np.pad(1 + order.argsort(axis=1), ((0, 0), (1, 0)))
  encoded = np.take_along_axis(encoded, order[..., None], axis=1)

  drawn = jnp.asarray(hidden), jnp.where(hidden, MASK, 0)
  monkeypatch.setattr(corruption.Corruption, 'draw', lambda *_: drawn)
  batch = {'image': jnp.asarray(images), 'corruption_key': None}

  @jax.jit
  def compute(params):
    loss, grads = jax.value_and_grad(
      lambda params: masked_patch.mean_loss(task)(params, batch, None)[0]
    )(params)
    x = batch['image'] / 127.5 - 1
    return task.model.apply({'params': params}, x, source=drawn[1]), loss, grads

  (predictions, out), loss, grads = compute(params)
  np.testing.assert_allclose(out['encoded'], encoded, atol=1e-5)
  logits = found.logits.detach().numpy()
  np.testing.assert_allclose(predictions, logits, atol=1e-5)
  np.testing.assert_allclose(loss, found.loss.item(), rtol=1e-5)
  expected = {k: x.grad for k, x in theirs.named_parameters() if 'pos' not in k}
  expected = ours_of(expected, *heads)
  norms = jax.tree.map(np.linalg.norm, expected)
  whole = max(jax.tree.leaves(norms))

  def assert_close(actual, expected, norm):  # A key's bias has no gradient.
    assert np.linalg.norm(actual - expected) <= 1e-5 * norm + 1e-7 * whole

  jax.tree.map(assert_close, grads, expected, norms)
