"""A plain Vision Transformer from Flax's and optax's own parts.

It is the baseline for `vit_jax`, a short implementation without optimisations:
`nn.MultiHeadDotProductAttention`, `nn.LayerNorm`, `nn.Dense`, `nn.Conv` for the
patches, `optax.adamw`. It has as many parameters as `vit_jax`'s model.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import ml_collections
import optax


class PlainBlock(nn.Module):
  """A pre-LayerNorm Transformer block."""

  heads: int
  mlp_dim: int
  dropout_rate: float
  dtype: jax.typing.DTypeLike

  @nn.compact
  def __call__(self, x, train):
    drop = nn.Dropout(self.dropout_rate, deterministic=not train)
    y = nn.LayerNorm(dtype=self.dtype)(x)
    y = nn.MultiHeadDotProductAttention(self.heads, dtype=self.dtype)(y, y)
    x = x + drop(y)
    y = nn.LayerNorm(dtype=self.dtype)(x)
    y = drop(nn.gelu(nn.Dense(self.mlp_dim, dtype=self.dtype)(y)))
    return x + drop(nn.Dense(x.shape[-1], dtype=self.dtype)(y))


class PlainViT(nn.Module):
  """A Vision Transformer with learned position embeddings."""

  num_classes: int
  width: int
  depth: int
  heads: int
  mlp_dim: int
  patch_size: tuple[int, int]
  pooling: str
  representation_size: int | None
  dropout_rate: float
  dtype: jax.typing.DTypeLike

  @nn.compact
  def __call__(self, images, train):
    x = nn.Conv(
      self.width,
      self.patch_size,
      strides=self.patch_size,
      padding='VALID',
      dtype=self.dtype,
    )(images)
    x = x.reshape(len(x), -1, self.width)
    if self.pooling == 'token':
      token = self.param('token', nn.initializers.zeros, (1, 1, self.width))
      token = jnp.tile(token, (len(x), 1, 1)).astype(x.dtype)
      x = jnp.concatenate([token, x], axis=1)
    table = self.param(
      'position', nn.initializers.normal(0.02), (1, *x.shape[1:])
    )
    x = x + table.astype(x.dtype)
    x = nn.Dropout(self.dropout_rate, deterministic=not train)(x)
    for _ in range(self.depth):
      x = PlainBlock(self.heads, self.mlp_dim, self.dropout_rate, self.dtype)(
        x, train
      )
    x = nn.LayerNorm(dtype=self.dtype)(x)
    x = x[:, 0] if self.pooling == 'token' else x.mean(axis=1)
    if self.representation_size:
      x = jnp.tanh(nn.Dense(self.representation_size, dtype=self.dtype)(x))
    return nn.Dense(self.num_classes)(x.astype(jnp.float32))


def build(config: ml_collections.ConfigDict, model: nn.Module) -> PlainViT:
  """Returns the plain form of a config's model.

  Args:
    config: the complete config.
    model: its model from `models.build`.

  Raises:
    ValueError: the model has an option that `PlainViT` lacks.
  """
  plain = {
    'pooling': ('token', 'gap'),
    'position_embedding': ('1d',),
    'position_site': ('stem',),
    'attention': ('full',),
    'gelu': ('tanh',),
    'norm_epsilon': (1e-6,),
    'norm_position': ('pre',),
    'parallel': (False,),
    'qk_norm': (False,),
    'qkv_bias': (True,),
    'norm_bias': (True,),
    'resnet_blocks': (None,),
  }
  for name, choices in plain.items():
    if getattr(model, name, 'missing') not in choices:
      raise ValueError(
        f'{config.model.name} with {name}='
        f'{getattr(model, name, "(no such option)")!r} has no plain form:'
        f' {name} must be in {list(choices)}. Leave --against=plain out.'
      )
  return PlainViT(
    num_classes=model.num_classes,
    width=model.width,
    depth=model.depth,
    heads=model.heads,
    mlp_dim=model.mlp_dim,
    patch_size=tuple(model.patch_size),
    pooling=model.pooling,
    representation_size=model.representation_size,
    dropout_rate=model.dropout_rate,
    dtype=model.dtype,
  )


def loss_of(name: str, logits: jax.Array, labels: jax.Array) -> jax.Array:
  """Returns the mean loss of logits [B, K] and labels, int32 [B] or [B, M].

  Args:
    name: 'softmax' or 'sigmoid', as in the config's `loss.name`.
    logits: float32.
    labels: class indices; -1 means no label.
  """
  targets = jax.nn.one_hot(labels, logits.shape[-1])
  if targets.ndim == 3:  # Several labels per image.
    targets = targets.max(axis=1)
  if name == 'sigmoid':
    losses = optax.sigmoid_binary_cross_entropy(logits, targets).sum(axis=-1)
  else:
    losses = optax.softmax_cross_entropy(logits, targets)
  return losses.mean()


def make_step(config: ml_collections.ConfigDict, model: PlainViT):
  """Makes a training step with optax's AdamW.

  Returns:
    `init(key) -> state` and `step(state, batch) -> (state, loss)`, both not
    jitted. A state is (params, optimizer's state, key). A batch has `image`
    uint8 [B, H, W, C] and `label` int32 [B] or [B, M].

  Raises:
    ValueError: the config's optimizer is not Adam.
  """
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

  def init(key):
    images = jnp.zeros((1, *config.image_size, config.channels))
    params = model.init(key, images, train=False)['params']
    return params, optimizer.init(params), key

  def batch_loss(params, batch, key):
    images = batch['image'].astype(jnp.float32) / 127.5 - 1
    logits = model.apply(
      {'params': params}, images, train=True, rngs={'dropout': key}
    )
    return loss_of(config.loss.name, logits, batch['label'])

  def step(state, batch):
    params, opt_state, key = state
    key, dropout_key = jax.random.split(key)
    loss, grads = jax.value_and_grad(batch_loss)(params, batch, dropout_key)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return (optax.apply_updates(params, updates), opt_state, key), loss

  return init, step
