"""Trains and evaluates: `python -m vit_jax.main --config=FILE --workdir=DIR`.

  --config=configs/quickstart.py                  the whole story in minutes
  --config=configs/pretrain.py:ViT-B/16,imagenet2012
  --config=configs/finetune.py:ViT-B/16,folder:/data/pets
  --config.KEY=VALUE                 overrides any key of vit_jax/config.py

Run it again with the same flags to go on where it stopped.
"""

import sys

from absl import app, flags, logging
from ml_collections import config_flags

from vit_jax import logs, stages
from vit_jax.progress import NonFiniteError

_CONFIG = config_flags.DEFINE_config_file(
  'config',
  help_string='Config file, with its argument: configs/NAME.py[:ARGUMENT].',
  lock_config=True,
)
_WORKDIR = flags.DEFINE_string(
  'workdir',
  None,
  'Directory of the run: checkpoints, metrics.jsonl, TensorBoard files. The'
  ' run resumes from it if it holds a checkpoint.',
)
_ALLOW_CONFIG_CHANGE = flags.DEFINE_bool(
  'allow_config_change',
  False,
  'Go on in a work directory that was written by another config.',
)


def main(argv):
  if len(argv) > 1:
    raise app.UsageError(f'Unexpected arguments: {argv[1:]}.')
  logs.set_up_console()
  try:
    stages.run(
      _CONFIG.value,
      _WORKDIR.value,
      allow_config_change=_ALLOW_CONFIG_CHANGE.value,
    )
  except (ValueError, NonFiniteError) as error:
    # What the user can mend comes as one message; train.log and --v=1 have
    # the traceback.
    logging.vlog(1, 'Traceback:', exc_info=True)
    sys.exit(f'error: {error}')


def run():
  """Entry point: exit code 0 only when everything was done."""
  flags.mark_flags_as_required(['config', 'workdir'])
  app.run(main)


if __name__ == '__main__':
  run()
