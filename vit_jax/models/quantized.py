"""Products of 8-bit integers in a Transformer's blocks: an experimental option.

The library qwix (the extra `quantized`) rounds both factors of a dense layer to
8 bits whenever they are multiplied. Each row and each column has its own scale,
its largest absolute value. Parameters stay float32, their gradients pass the
rounding unchanged, and everything else keeps its dtype: patch embedding,
attention's products, norms and head.
"""

import importlib.util

import flax.linen as nn
import jax.numpy as jnp

# Value of `quantization` -> whether the gradients' products are rounded, too.
QUANTIZATIONS = {'none': None, 'int8': False, 'int8_all': True}
INSTALL = 'pip install "vit-paper-jax[quantized]" (the library qwix).'
_DENSE = r'.*/(query|key|value|out|Dense_0|Dense_1)'


def is_installed() -> bool:
  """Returns whether qwix is installed, without importing it."""
  return bool(importlib.util.find_spec('qwix'))


def quantized(model: nn.Module, quantization: str) -> nn.Module:
  """Returns a model whose blocks multiply 8-bit integers.

  Args:
    model: a ViT or hybrid.
    quantization: a key of QUANTIZATIONS; 'none' returns the model itself.

  Returns:
    A model of the same attributes and parameters.

  Raises:
    ValueError: qwix is not installed.
  """
  backward = QUANTIZATIONS[quantization]
  if backward is None:
    return model
  if not is_installed():
    raise ValueError(f'quantization={quantization!r} needs {INSTALL}')
  import qwix

  rule = qwix.QtRule(
    module_path=_DENSE,
    weight_qtype=jnp.int8,
    act_qtype=jnp.int8,
    bwd_qtype=jnp.int8 if backward else None,
  )
  return qwix.quantize_model(model, qwix.QtProvider([rule]))
