"""Recipes with stages: one of them, or all, which build on each other."""

import ml_collections
from ml_collections import config_dict

from vit_jax.configs.recipes import base


def choose(args, **rows):
  """Returns the run that `stage=` names, or with `all` one after another.

  Stages have the arguments of `base.build`; the first one is the default. With
  `all`, `epochs=` is that of the first, and splits are not for other data.
  """
  first = next(iter(rows))
  stage = args.get('stage', first)
  if stage != 'all':
    init = '' if stage == first else config_dict.placeholder(str)
    return base.build(args, init=init, **rows[stage])
  configs, init = {}, ''
  for name, row in rows.items():
    others = ('epochs',) if init else ()
    others += ('copy', 'train', 'eval') if 'data' in row else ()
    own = {key: value for key, value in args.items() if key not in others}
    configs[name], init = base.build(own, init=init, **row), f'stage:{name}'
  return ml_collections.ConfigDict({'stages': configs, 'order': tuple(rows)})
