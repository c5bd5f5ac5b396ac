"""The optimizers of a config, and their keys, which are read from optax.

Each argument of an optax function is a key of the section `optimizer`, with
the argument's name, default and explanation.
"""

import inspect
import re
import textwrap
import typing
from collections.abc import Callable

import optax
import optax.contrib

from vit_jax.models.model_options import Check, Key, one_of

# `optimizer.name` -> the function whose arguments are its keys. It is called
# with a schedule, unless `training.optimizer.BUILDERS` has an own one.
OPTIMIZERS = {
  'adafactor': optax.adafactor,
  'adamw': optax.adamw,
  'lamb': optax.lamb,
  'lars': optax.lars,
  'lion': optax.lion,
  'muon': optax.contrib.muon,
  'sgd': optax.sgd,
}
# Keys of all optimizers.
_COMMON = {
  'weight_decay_params': Key(
    'all',
    'Which parameters decay; with LAMB and LARS, also those whose rate follows'
    ' their norm.',
    one_of('all', 'kernels'),
  ),
  'clip_norm': Key(
    0.0, 'Larger gradients are scaled to this global norm; 0 clips none.'
  ),
}
# Where an own builder differs from the function.
_OWN = {
  'adafactor': {
    'clipping_threshold': Key(
      1.0, "The largest root mean square of a parameter's update; 0: any."
    ),
    'weight_decay_rate': Key(
      float, 'The share of a weight that a step at learning rate 1 removes.'
    ),
  },
  'sgd': {
    'weight_decay': Key(
      0.0, 'The share of a weight that is added to its gradient.'
    )
  },
}
# Arguments that the code sets.
_SET = re.compile(r'.*(learning_rate|mask|dimension_numbers)')


def keys_of(name: str) -> dict[str, Key]:
  """Returns the keys of an optimizer of `OPTIMIZERS`.

  A number whose default is None has no value unless it is set. A dtype that
  follows the parameters, which are float32, is 'float32'.
  """
  function = OPTIMIZERS[name]
  title, *_ = (inspect.getdoc(function) or name).splitlines()
  docs = _explanations(function)
  keys = {
    key: _key(parameter, docs.get(key, f'See {function.__name__} of optax.'))
    for key, parameter in inspect.signature(function).parameters.items()
    if not _SET.fullmatch(key)
  }
  return {'name': Key(name, title)} | keys | _OWN.get(name, {}) | _COMMON


def _key(parameter: inspect.Parameter, doc: str) -> Key:
  default, kind = parameter.default, parameter.annotation
  if 'dtype' in parameter.name:
    return Key('float32', doc, one_of('float32', 'bfloat16'))
  if typing.get_origin(kind) is typing.Literal:
    return Key(default, doc, one_of(*typing.get_args(kind)))
  if isinstance(default, tuple):
    right = Check(
      lambda x: len(x) == len(default) and all(isinstance(n, float) for n in x),
      f'{len(default)} numbers',
    )
    return Key(default, doc, right)
  return Key(float if default is None else default, doc)


def _explanations(function: Callable) -> dict[str, str]:
  """Returns what a docstring says of each argument, in plain text."""
  doc = inspect.getdoc(function) or ''
  _, _, rest = doc.partition('Args:\n')
  text = textwrap.dedent(rest.partition('\n\nReturns:')[0])
  found = re.findall(r'^(\w+): (.*(?:\n .*|\n)*)', text, re.MULTILINE)
  return {
    name: re.sub(r'`+|:\w+:', '', ' '.join(explanation.split()))
    for name, explanation in found
  }
