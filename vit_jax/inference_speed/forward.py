"""The timed program, and the interface of the devices that time it."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.models import shared


@dataclasses.dataclass(frozen=True)
class Program:
  """A compiled forward pass.

  Attributes:
    bytes: memory that it takes: arguments, results, temporaries and code.
    seconds: returns the seconds of one call.
  """

  bytes: int
  seconds: Callable[[], float]


@dataclasses.dataclass(frozen=True)
class Device:
  """A device on which programs run, or for which they are compiled.

  Attributes:
    name: name for people: 'TPU v3 core', 'NVIDIA H200'.
    platform: 'tpu', 'gpu' or 'cpu', which determines dtype and attention.
    memory_bytes: memory that a program may take.
    compile: `(model, size, batch_size) -> Program`; raises JaxRuntimeError if
      the compiler finds too little memory or fails.
    unit: unit of speeds and batches: 'core' for a TensorCore, else 'device'.
    cores: units in a device, by which the figures are divided.
    estimated: whether seconds are the compiler's estimate, not measured.
  """

  name: str
  platform: str
  memory_bytes: int
  compile: Callable[[nn.Module, int, int], Program]
  unit: str = 'device'
  cores: int = 1
  estimated: bool = False


def shapes(model: nn.Module, size: int, batch_size: int) -> tuple[Any, Any]:
  """Returns the program's arguments: parameters and images.

  The images are uint8 [batch_size, size, size, 3].
  """
  images = jax.ShapeDtypeStruct((batch_size, size, size, 3), np.dtype('uint8'))
  return _param_shapes(model, size), images


@functools.lru_cache(maxsize=1)  # One trace for all batches of an entry.
def _param_shapes(model: nn.Module, size: int) -> Any:
  image = jax.ShapeDtypeStruct((1, size, size, 3), jnp.float32)
  return jax.eval_shape(
    lambda image: model.init(jax.random.key(0), image, train=False)['params'],
    image,
  )


def lower(
  model: nn.Module,
  size: int,
  batch_size: int,
  sharding: jax.sharding.Sharding,
) -> jax.stages.Lowered:
  """Traces `(params, images) -> logits`, float32 [batch_size, classes]."""
  arguments = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
    shapes(model, size, batch_size),
  )

  def classify(params, images):
    images = shared.normalize(images)
    return model.apply({'params': params}, images, train=False)[0]

  return jax.jit(classify).lower(*arguments)
