"""Configs: the keys of a run, their checks, and the values derived from them.

`keys.default` explains every key. A config file starts from it, takes sections
from `sections` and reads its argument with `parse_argument`. `validate` checks
a config, `resolve` completes it. `save`, `load` and `check_same_run` keep it in
a work directory. `inputs` opens the data that it names.
"""

from vit_jax.config.arguments import name_of_split, parse_argument
from vit_jax.config.derived import resolve
from vit_jax.config.keys import (
  AUTO,
  AUTO_CLEAN,
  LOCATED_DATASETS,
  default,
  is_located,
)
from vit_jax.config.saved import (
  FILE,
  FREE_KEYS,
  check_same_run,
  flatten,
  load,
  save,
  to_json,
)
from vit_jax.config.sections import (
  CLEAN,
  FEATURES,
  MASKED_PATCH,
  adam,
  add_clean,
  evaluation,
  few_shot,
  is_due,
  knn,
  linear_probe,
  masked_patch,
  masked_patch_evaluation,
  metrics_of,
  schedule,
  sgd,
  softmax,
)
from vit_jax.config.validation import validate

__all__ = [
  'AUTO',
  'AUTO_CLEAN',
  'CLEAN',
  'FEATURES',
  'FILE',
  'FREE_KEYS',
  'LOCATED_DATASETS',
  'MASKED_PATCH',
  'adam',
  'add_clean',
  'check_same_run',
  'default',
  'evaluation',
  'few_shot',
  'flatten',
  'is_due',
  'is_located',
  'knn',
  'linear_probe',
  'load',
  'masked_patch',
  'masked_patch_evaluation',
  'metrics_of',
  'name_of_split',
  'parse_argument',
  'resolve',
  'save',
  'schedule',
  'sgd',
  'softmax',
  'to_json',
  'validate',
]
