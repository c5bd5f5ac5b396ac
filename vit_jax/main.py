"""Trains and evaluates: `python -m vit_jax.main --config=FILE --workdir=DIR`.

  --config=configs/quickstart.py                  the whole story in minutes
  --config=configs/pretrain.py:ViT-B/16,imagenet2012
  --config=configs/finetune.py:ViT-B/16,folder:/data/pets
  --config.KEY=VALUE                 overrides any key of vit_jax/config.py

Run it again with the same flags to go on where it stopped.
"""

from absl import flags
from ml_collections import config_flags

from vit_jax import command_line, stages

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


def main():
  stages.run(
    _CONFIG.value,
    _WORKDIR.value,
    allow_config_change=_ALLOW_CONFIG_CHANGE.value,
  )


if __name__ == '__main__':
  command_line.run(main, required=('config', 'workdir'))
