"""Guards: counts of compute and memory match the paper and the compiler."""

import functools
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from vit_jax import accounting, models
from vit_jax.accounting import traces

# Appendix Table 6 of arXiv:2010.11929, at 224 px with JFT's 18,291 classes. The
# other models are in paper/test_cost.py, items/test_tables.py and plan/.
TABLE_6 = [('ViT-H/14', 14, 4262), ('R50+ViT-B/16', 7, 274)]

_ATTENTION = 'MultiHeadDotProductAttention_0'
TINY = dict(width=8, depth=2, heads=2, mlp_dim=16)


@functools.cache
def _tiny(**overrides):
  overrides = {**TINY, **overrides}
  model = models.build('ViT-B/16', num_classes=10, **overrides)
  return accounting.account(model, 32)


def _count(function, *args):
  jaxpr = jax.make_jaxpr(function)(*args).jaxpr
  return sum(macs for _, macs in traces.products(jaxpr))


@pytest.mark.parametrize('name, epochs, printed', TABLE_6)
def test_exaflops_of_table_6(name, epochs, printed):
  # A scan is traced once.
  model = models.build(name, num_classes=18_291, scan=True)
  model = model.clone(representation_size=model.width)
  ours = accounting.exaflops(accounting.forward_macs(model, 224), 303e6, epochs)
  assert ours == pytest.approx(printed, rel=0.015)


def test_vit_b_16_by_part():
  model = models.build('ViT-B/16', num_classes=1000, scan=True)
  account = accounting.account(model, 224)
  L, D, M, block = 197, 768, 3072, 'Transformer/encoderblock_*/'
  assert {p.name: (p.params, p.macs) for p in account.parts} == {
    'embedding': (D * D + D, 196 * D * D),
    'Transformer/posembed_input': (L * D, 0),
    block + 'LayerNorm_0': (12 * 2 * D, 0),
    block + 'attention products': (0, 12 * 2 * L * L * D),
    block + _ATTENTION: (12 * 4 * (D * D + D), 12 * 4 * L * D * D),
    block + 'LayerNorm_1': (12 * 2 * D, 0),
    block + 'MlpBlock_0': (12 * (2 * D * M + M + D), 12 * 2 * L * D * M),
    'Transformer/encoder_norm': (2 * D, 0),
    'ViT': (D, 0),
    'head': (769_000, 768_000),
  }
  assert account.params == 86_567_656
  assert account.macs == 17_563_828_224


def test_scan_changes_nothing():
  options = dict(dropout_rate=0.1, dtype='bfloat16')
  assert _tiny(**options, scan=True) == _tiny(**options)


def _gelu_factors():
  """Returns how many arrays JAX keeps for a GELU: 5 in 0.10, 4 in 0.12."""
  x = jax.ShapeDtypeStruct((5, 16), jnp.float32)
  kept = jax.eval_shape(lambda x: jax.vjp(nn.gelu, x)[1], x)
  return sum(a.shape == x.shape for a in jax.tree.leaves(kept))


def test_activations_of_a_tiny_vit_by_hand():
  # L = 5 tokens of D = 8, H = 2 heads, MLP of M = 16; float32. A norm keeps
  # four of [L, D]: 2 * x, x - mean, scale / deviation and the output; and four
  # of [L, 1].
  norm = 4 * 40 + 4 * 5
  # Attention: query, key, value and the output, [L, D]; [H, L, L]: exp(scores)
  # and weights; [H, L, 1]: sums and their -2nd powers.
  attention = 4 * 40 + 2 * 50 + 2 * 10
  # [L, M]: the factors of the GELU's derivative, and the GELU.
  mlp = (_gelu_factors() + 1) * 80
  # The 4 patches of 768 values; two blocks; of the last norm, only the class
  # token's output, [D], which is the head's input.
  numbers = 4 * 768 + 2 * (2 * norm + attention + mlp) + norm - 40 + 8
  assert _tiny().activation_bytes == 4 * numbers


def test_remat_keeps_the_blocks_inputs():
  plain, full, dots = (
    _tiny(remat=remat, scan=True).activation_bytes
    for remat in ('none', 'full', 'dots')
  )
  # Each of the two blocks keeps its input, [L, D] in float32; what is not in a
  # block stays.
  rest = 4 * (4 * 768 + 4 * 40 + 4 * 5 - 40 + 8)
  assert full == rest + 2 * 40 * 4
  # `dots` also keeps the outputs of dense layers, except the last of the MLP.
  # It is only added to the residual stream, so no gradient needs it.
  assert dots == full + 2 * (4 * 40 + 80) * 4
  assert dots < plain


@pytest.mark.parametrize(
  'options',
  [
    dict(padding=((1, 1), (2, 2)), window_strides=(2, 3), lhs_dilation=(2, 3)),
    dict(window_strides=(2, 1), rhs_dilation=(3, 2)),
    dict(window_strides=(1, 1), feature_group_count=2),
  ],
)
def test_convolution_macs_equal_the_sum_over_ones(options):
  groups = options.get('feature_group_count', 1)
  images, kernel = jnp.ones((2, 9, 8, 4)), jnp.ones((3, 2, 4 // groups, 6))

  options = {'padding': 'SAME'} | options
  axes = ('NHWC', 'HWIO', 'NHWC')
  convolve = functools.partial(
    jax.lax.conv_general_dilated, dimension_numbers=axes, **options
  )

  # With ones everywhere, each product inside the image adds one.
  out = convolve(images, kernel)
  assert _count(convolve, images, kernel) == int(out.sum())


def test_agrees_with_the_compiler():
  model = models.build(
    'R50+ViT-B/16', num_classes=1000, depth=1, resnet_blocks=(1, 1)
  )
  images = jax.ShapeDtypeStruct((1, 64, 64, 3), jnp.float32)
  params = jax.eval_shape(model.init, jax.random.key(0), images)
  forward = jax.jit(lambda *args: model.apply(*args, train=False)[0])
  flops = forward.lower(params, images).cost_analysis()['flops']
  # The compiler counts elementwise operations as well.
  assert 1 < flops / (2 * accounting.forward_macs(model, 64)) < 1.1


def test_products_in_loops_branches_and_custom_gradients_count():
  a = jnp.ones((5, 3, 3))
  once = 5 * 3 * 3 * 3

  def product(a):
    return jnp.einsum('bij,bjk->bik', a, a)

  own_gradient = jax.custom_vjp(product)
  own_gradient.defvjp(lambda a: (product(a), a), lambda kept, g: (kept,))

  def loop(a):
    return jax.lax.scan(lambda a, _: (product(a), None), a, None, length=7)

  def either(a):
    branches = product, lambda a: product(product(a)), lambda a: a
    return jax.lax.switch(1, branches, a)

  def unknown(a):
    return jax.lax.while_loop(lambda a: a.sum() < 9, product, a)

  for function in (jax.jit(product), jax.checkpoint(product), own_gradient):
    assert _count(function, a) == once
  assert _count(loop, a) == 7 * once
  assert _count(either, a) == 2 * once
  with pytest.raises(ValueError, match='matrix products in a while'):
    _count(unknown, a)


def test_the_backward_pass_of_a_part_that_trains():
  sizes = dict(width=16, depth=3, heads=2, mlp_dim=32)
  model = models.build('ViT-Ti/8', num_classes=5, **sizes)
  whole = accounting.account(model, 32)
  assert whole.backward_macs == 2 * whole.macs

  def account(pattern, model=model):
    return accounting.account(
      model, 32, trained=lambda name: bool(re.fullmatch(pattern, name))
    )

  head = account('head/.*')
  # The gradient of the head's kernel needs only the head's input.
  assert head.backward_macs == 16 * 5
  assert head.activation_bytes == 16 * 4
  # L tokens; a block's kernels, and its two products of attention.
  L, D = 17, 16
  kernels, products = L * D * (4 * D + 2 * 32), 2 * L * L * D
  trained = 'head/.*|Transformer/encoderblock_2/(Multi|Mlp|LayerNorm_1).*'
  last = account(trained)
  # All gradients but those of the input of query, key and value.
  expected = 2 * (kernels + products + D * 5) - 3 * L * D * D
  assert last.backward_macs == expected
  # What is recomputed does not count.
  again = account(trained, model.clone(remat='full'))
  assert again.backward_macs == expected
  assert again.activation_bytes < last.activation_bytes
  assert last.activation_bytes < whole.activation_bytes / 2


def test_command_prints_a_table(command):
  run = command(
    'vit_jax.accounting',
    'ViT-B/16:scan=True,representation_size=768',
    '--num_classes=18291',
  )
  lines = [line.split() for line in run.stdout.splitlines()]
  products = 'Transformer/encoderblock_*/attention'
  assert [products, 'products', '0.715'] in lines
  assert ['head', '14,065,779', '0.014'] in [line[:3] for line in lines]
  total = next(line for line in lines if line[:1] == ['total'])
  assert total[1:3] == ['100,455,027', '17.578']
