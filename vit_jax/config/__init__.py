"""Configs: the keys of a run, their checks, and the values derived from them.

`keys.KEYS` explains every key. A config file starts from `default`, takes
sections from `sections` and reads its argument with `parse_argument`. For each
run, `validate` checks the config, and `complete` completes it when its data are
open; `resolve` is the part of that which needs only their sizes.
`save`, `load` and `check_same_run` keep the config in a work directory.
`inputs` opens the data that it names.
"""

from vit_jax.config.arguments import add_clean as add_clean
from vit_jax.config.arguments import name_of_split as name_of_split
from vit_jax.config.arguments import parse_argument as parse_argument
from vit_jax.config.completion import choose_evaluation as choose_evaluation
from vit_jax.config.completion import complete as complete
from vit_jax.config.completion import resolve as resolve
from vit_jax.config.keys import AUTO as AUTO
from vit_jax.config.keys import FREE_KEYS as FREE_KEYS
from vit_jax.config.keys import default as default
from vit_jax.config.keys import flatten as flatten
from vit_jax.config.keys import validate as validate
from vit_jax.config.saved import FILE as FILE
from vit_jax.config.saved import check_same_run as check_same_run
from vit_jax.config.saved import digest as digest
from vit_jax.config.saved import is_located as is_located
from vit_jax.config.saved import load as load
from vit_jax.config.saved import save as save
from vit_jax.config.saved import to_json as to_json
from vit_jax.config.sections import EVALUATIONS as EVALUATIONS
from vit_jax.config.sections import FEATURES as FEATURES
from vit_jax.config.sections import MAE as MAE
from vit_jax.config.sections import MASKED_PATCH as MASKED_PATCH
from vit_jax.config.sections import PATCH_LOSSES as PATCH_LOSSES
from vit_jax.config.sections import SECTIONS as SECTIONS
from vit_jax.config.sections import due as due
from vit_jax.config.sections import evaluation as evaluation
from vit_jax.config.sections import mae as mae
from vit_jax.config.sections import masked_patch as masked_patch
from vit_jax.config.sections import metrics_of as metrics_of
from vit_jax.config.sections import optimizer as optimizer
from vit_jax.config.sections import schedule as schedule
from vit_jax.config.sections import sigmoid as sigmoid
from vit_jax.config.sections import softmax as softmax
