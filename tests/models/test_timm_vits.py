"""Guards: ViTs with more tokens, heads or norms equal timm's.

Outputs and gradients of equal parameters, rates by layer, resized kernels.
"""

import jax
import numpy as np
import pytest

timm = pytest.importorskip('timm')
torch = pytest.importorskip('torch')

from timm.layers import resample_patch_embed  # noqa: E402
from timm.models.deit import VisionTransformerDistilled  # noqa: E402
from timm.models.vision_transformer import VisionTransformer  # noqa: E402
from timm.optim import param_groups_layer_decay  # noqa: E402

from tests.interop import tiny  # noqa: E402
from vit_jax.interop import families, layouts  # noqa: E402
from vit_jax.interop.layouts import Rule  # noqa: E402
from vit_jax.models import layers, patches  # noqa: E402
from vit_jax.training import tuning  # noqa: E402

pytestmark = pytest.mark.hf

SIZE = (8, 12)
RNG = np.random.default_rng(0)
IMAGES = RNG.uniform(-1, 1, (3, *SIZE, 3)).astype('f')
WEIGHTS = RNG.normal(size=(2, 3, 5)).astype('f')  # Of a sum of both logits.

_OURS = 'Transformer/encoderblock_{i}/'
_ATTENTION = _OURS + 'MultiHeadDotProductAttention_0/'
TIMM = layouts.Family(
  rules=(
    Rule('cls_token', 'cls'),
    Rule('dist_token', 'dist'),
    Rule('reg_token', 'registers'),
    Rule('pos_embed', families.POSITION),
    *layouts.of_pytorch(
      {
        'patch_embed.proj': 'embedding',
        'norm': 'Transformer/encoder_norm',
        **{name: name for name in ('fc_norm', 'head', 'head_dist')},
        'blocks.{i}.norm1': f'{_OURS}LayerNorm_0',
        'blocks.{i}.norm2': f'{_OURS}LayerNorm_1',
        'blocks.{i}.attn.q': f'{_ATTENTION}query',
        'blocks.{i}.attn.k': f'{_ATTENTION}key',
        'blocks.{i}.attn.v': f'{_ATTENTION}value',
        'blocks.{i}.attn.proj': f'{_ATTENTION}out',
        'blocks.{i}.mlp.fc1': f'{_OURS}MlpBlock_0/Dense_0',
        'blocks.{i}.mlp.fc2': f'{_OURS}MlpBlock_0/Dense_1',
      }
    ),
    Rule('blocks.{i}.ls1.gamma', f'{_OURS}layer_scale_0'),
    Rule('blocks.{i}.ls2.gamma', f'{_OURS}layer_scale_1'),
  )
)
# Our options, and timm's.
PAIRS = {
  'registers': (
    {'registers': 4},
    {'reg_tokens': 4, 'no_embed_class': True},
  ),
  'registers, mean': (
    {'registers': 4, 'pooling': 'gap', 'final_norm': 'pooled'},
    {'reg_tokens': 4, 'no_embed_class': True}
    | {'class_token': False, 'global_pool': 'avg'},
  ),
  'mae': (
    {'pooling': 'gap_patches', 'final_norm': 'pooled'},
    {'global_pool': 'avg'},
  ),
  'distilled': ({'distillation_token': True}, {}),
  'dinov2': (
    {'registers': 3, 'layer_scale': 1.0},
    {'reg_tokens': 3, 'no_embed_class': True, 'init_values': 1.0},
  ),
}


def _written(flat, class_has_position=True):
  """Returns flat parameters by timm's names."""
  flat = dict(flat)
  if not class_has_position:
    prefix = int('cls' in flat)
    flat[families.POSITION] = flat[families.POSITION][:, prefix:]
  found = {name: np.asarray(x) for name, x in TIMM.write(flat).items()}
  for name in [name for name in found if '.attn.q.' in name]:
    parts = [found.pop(name.replace('.q.', f'.{part}.')) for part in 'qkv']
    found[name.replace('.q.', '.qkv.')] = np.concatenate(parts)
  return found


def _pair(name):
  """Returns our model and parameters, and timm's model with the same ones."""
  ours, options = PAIRS[name]
  model = tiny.vit(**{'gelu': 'exact'} | ours)
  params = jax.tree.map(lambda x: 0.4 * x, tiny.params(model, SIZE))
  whole = not options.get('no_embed_class')
  if not whole and 'cls' in params:
    table = params['Transformer']['posembed_input']['pos_embedding']
    table[:, 0] = 0  # timm has no position for the class token there.
  kind = (
    VisionTransformerDistilled if name == 'distilled' else VisionTransformer
  )
  theirs = kind(
    **{'img_size': SIZE, 'patch_size': 4, 'num_classes': 5, 'embed_dim': 16},
    **{'depth': 2, 'num_heads': 2, 'mlp_ratio': 1.5},
    **options,
  )
  state = _written(tiny.flat(params), whole)
  theirs.load_state_dict({k: torch.tensor(x) for k, x in state.items()})
  return model, params, theirs, whole


@pytest.mark.parametrize('name', PAIRS)
def test_outputs_and_gradients_are_timms(name):
  model, params, theirs, whole = _pair(name)
  pixels = torch.tensor(IMAGES.transpose(0, 3, 1, 2))
  with torch.no_grad():
    expected = theirs.eval()(pixels).numpy()
  logits, _ = jax.jit(model.apply)({'params': params}, IMAGES)
  assert np.abs(expected).max() > 0.5
  np.testing.assert_allclose(logits, expected, atol=5e-6)

  def loss(params):
    logits, out = model.apply({'params': params}, IMAGES, train=True)
    both = logits, out.get('distilled', logits)
    return sum((w * x).sum() for w, x in zip(WEIGHTS, both, strict=True)), both

  (_, both), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
  theirs.train()
  if name == 'distilled':
    theirs.set_distilled_training(True)
  outputs = theirs(pixels)
  outputs = outputs if isinstance(outputs, tuple) else (outputs, outputs)
  for a, b in zip(both, outputs, strict=True):
    np.testing.assert_allclose(a, b.detach().numpy(), atol=5e-6)
  sum(
    (torch.tensor(w) * x).sum() for w, x in zip(WEIGHTS, outputs, strict=True)
  ).backward()
  found = _written(tiny.flat(grads), whole)
  for key, x in theirs.named_parameters():
    scale = float(x.grad.abs().max())
    np.testing.assert_allclose(
      found.pop(key) / scale, x.grad / scale, atol=1e-5, err_msg=key
    )
  assert not found


@pytest.mark.parametrize('norm', [False, True])
@pytest.mark.parametrize('name', PAIRS)
def test_tokens_are_those_of_timms_intermediate_layers(name, norm):
  model, params, theirs, _ = _pair(name)
  pixels = RNG.integers(0, 256, (3, *SIZE, 3), np.uint8)
  theirs_in = torch.tensor((pixels / 127.5 - 1).transpose(0, 3, 1, 2)).float()
  with torch.no_grad():
    expected = theirs.eval().get_intermediate_layers(
      theirs_in, 2, reshape=True, return_prefix_tokens=True, norm=norm
    )
  run = jax.jit(layers.tokens, static_argnums=(0, 3), static_argnames='norm')
  for found, both in zip(
    run(model, params, pixels, 2, norm=norm), expected, strict=True
  ):
    maps, prefix = both if model.prefix else (both, None)
    maps = np.moveaxis(maps.numpy(), 1, 3)
    np.testing.assert_allclose(found.patches, maps, atol=1e-5)
    if 'cls' in params:
      np.testing.assert_allclose(found.cls, prefix[:, 0], atol=1e-5)


@pytest.mark.parametrize('name', PAIRS)
def test_rates_by_layer_are_timms(name):
  _, params, theirs, whole = _pair(name)
  expected = {}
  names = {id(x): key for key, x in theirs.named_parameters()}
  for group in param_groups_layer_decay(theirs, layer_decay=0.75):
    expected |= {names[id(x)]: group['lr_scale'] for x in group['params']}
  flat = tiny.flat(params)
  factors = tuning.layer_factors(0.75, {k: x.shape for k, x in flat.items()})
  filled = {k: np.full(x.shape, factors[k]) for k, x in flat.items()}
  for key, x in _written(filled, whole).items():
    if key.startswith('norm.'):
      # Differs: timm puts the last norm into the last block, BEiT behind it.
      assert expected[key] == 0.75 * x.max()
    else:
      np.testing.assert_allclose(x, expected[key], err_msg=key)


@pytest.mark.parametrize('size', [(4, 6), (3, 5), (8, 9), (16, 7)])
def test_kernels_are_resized_as_by_timm(size):
  kernel = RNG.normal(size=(8, 6, 3, 5)).astype('f')
  expected = resample_patch_embed(
    torch.tensor(kernel.transpose(3, 2, 0, 1)),
    *(size, 'bilinear'),
    antialias=False,
  )
  found = np.asarray(patches.resize_kernel(kernel, size)).transpose(3, 2, 0, 1)
  scale = np.abs(expected.numpy()).max()
  np.testing.assert_allclose(found / scale, expected / scale, atol=1e-5)
