"""Builds a model from a command line's text: `NAME[:KEY=VALUE,...]`."""

import ast
import re

import flax.linen as nn

from vit_jax.models import variants


def parse(spec: str, *, num_classes: int, **defaults) -> nn.Module:
  """Builds the model of a spec such as `ViT-B/16:gelu=exact,patch_size=(8, 4)`.

  Args:
    spec: a name and options of the model, see `variants.build`. A value that
      is not a Python literal is taken as text.
    num_classes: number of logits.
    **defaults: options that the spec may override.

  Raises:
    ValueError: an option has no value, the options include `num_classes`, or
      `variants.build` refuses them.
  """
  name, _, options = spec.partition(':')
  overrides = {}
  # A comma within a value, as in (8, 4), has no KEY= after it.
  for option in filter(None, re.split(r',(?=\w+=)', options)):
    key, equals, value = option.partition('=')
    if not equals:
      raise ValueError(f'{spec}: expected KEY=VALUE, got {option!r}.')
    try:
      overrides[key] = ast.literal_eval(value)
    except (ValueError, SyntaxError):
      overrides[key] = value
  if 'num_classes' in overrides:
    raise ValueError(
      f'{spec}: num_classes is no option here: remove it. It comes from'
      ' --num_classes, or from the head of the weights.'
    )
  return variants.build(name, num_classes=num_classes, **defaults | overrides)
