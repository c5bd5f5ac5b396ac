"""A plain Vision Transformer from Flax's and optax's own parts.

It is the baseline for `vit_jax`, a short implementation without optimisations:
`nn.MultiHeadDotProductAttention`, `nn.LayerNorm`, `nn.Dense`, `nn.Conv` for the
patches, `optax.adamw`. It has as many parameters as `vit_jax`'s model. Only the
loss is `vit_jax`'s own.
"""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import ml_collections
import optax

from vit_jax import losses

# The options of `vit_jax`'s model that `PlainViT` lacks, with what it does.
_FIXED = {
  'position_embedding': '1d',
  'position_site': 'stem',
  'attention': 'full',
  'gelu': 'tanh',
  'norm_epsilon': 1e-6,
  'norm_position': 'pre',
  'parallel': False,
  'qk_norm': False,
  'qkv_bias': True,
  'norm_bias': True,
  'resnet_blocks': None,
}


class PlainViT(nn.Module):
  """A Vision Transformer with learned position embeddings.

  Attributes:
    like: a model of `vit_jax`, whose sizes it has.
  """

  like: Any

  @nn.compact
  def __call__(self, images, train):
    like = self.like
    norm = functools.partial(nn.LayerNorm, dtype=like.dtype)
    dense = functools.partial(nn.Dense, dtype=like.dtype)
    drop = nn.Dropout(like.dropout_rate, deterministic=not train)
    patch = like.patch_size
    x = nn.Conv(like.width, patch, patch, 'VALID', dtype=like.dtype)(images)
    x = x.reshape(len(x), -1, like.width)  # [B, L, D]
    if like.pooling == 'token':
      token = self.param('token', nn.initializers.zeros, (1, 1, like.width))
      token = jnp.tile(token, (len(x), 1, 1)).astype(x.dtype)
      x = jnp.concatenate([token, x], axis=1)
    table = nn.initializers.normal(0.02), (1, *x.shape[1:])
    x = drop(x + self.param('position', *table).astype(x.dtype))
    for _ in range(like.depth):
      y = norm()(x)
      y = nn.MultiHeadDotProductAttention(like.heads, dtype=like.dtype)(y, y)
      x = x + drop(y)
      y = drop(nn.gelu(dense(like.mlp_dim)(norm()(x))))
      x = x + drop(dense(like.width)(y))
    x = norm()(x)
    x = x[:, 0] if like.pooling == 'token' else x.mean(axis=1)
    if like.representation_size:
      x = jnp.tanh(dense(like.representation_size)(x))
    return nn.Dense(like.num_classes)(x.astype(jnp.float32))


def make_step(
  config: ml_collections.ConfigDict, model: nn.Module
) -> tuple[Callable[[], Any], Callable[[Any, Any], tuple[Any, jax.Array]]]:
  """Makes a plain training step with optax's AdamW.

  Args:
    config: the complete config.
    model: its model from `models.build`.

  Returns:
    `init() -> state` and `step(state, batch) -> (state, loss)`, both not
    jitted. A state is (params, optimizer's state, key). A batch has `image`
    uint8 [B, H, W, C] and `label` int32 [B] or [B, M].

  Raises:
    ValueError: the config's model or optimizer has no plain form.
  """
  for name, fixed in _FIXED.items():
    value = getattr(model, name, '(no such option)')
    if value != fixed:
      raise ValueError(
        f'{config.model.name} with {name}={value!r} has no plain form: {name}'
        f' must be {fixed!r}. Leave --against=plain out.'
      )
  options = config.optimizer
  if options.name != 'adam':
    raise ValueError(
      f'the plain step supports only Adam, not optimizer.name={options.name!r}.'
    )
  optimizer = optax.adamw(
    config.schedule.peak,
    b1=options.beta1,
    b2=options.beta2,
    eps=options.eps,
    mu_dtype=options.moment_dtype,
    weight_decay=options.weight_decay,
  )
  if options.clip_norm:
    clip = optax.clip_by_global_norm(options.clip_norm)
    optimizer = optax.chain(clip, optimizer)
  plain, loss_of = PlainViT(model), losses.build(config.loss.name)

  def init():
    key = jax.random.key(config.seed)
    images = jnp.zeros((1, *config.image_size, config.channels))
    params = plain.init(key, images, train=False)['params']
    return params, optimizer.init(params), key

  def mean_loss(params, batch, key):
    images = batch['image'].astype(jnp.float32) / 127.5 - 1
    logits = plain.apply(
      {'params': params}, images, train=True, rngs={'dropout': key}
    )
    return loss_of(logits, batch['label']).mean()

  def step(state, batch):
    params, opt_state, key = state
    key, dropout_key = jax.random.split(key)
    loss, grads = jax.value_and_grad(mean_loss)(params, batch, dropout_key)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return (optax.apply_updates(params, updates), opt_state, key), loss

  return init, step
