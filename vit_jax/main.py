"""Trains and evaluates: `python -m vit_jax.main --config=FILE --workdir=DIR`.

  --config=configs/quickstart.py     pre-trains and fine-tunes in minutes
  --config=configs/pretrain.py:ViT-B/16,imagenet2012
  --config=configs/finetune.py:ViT-B/16,folder:/data/pets
  --config.KEY=VALUE                 overrides a key of the config
  --print_config                     lists the keys, and does nothing else

`--config=FILE --print_config` prints every key of that config: its meaning, its
value, and whether the value is the default, or comes from the file, the command
line, or other values. `--print_config=schedule` prints only keys with that word
in their names.

Start the same command again to resume the run. Exit codes: 0 everything was
done; 1 an error; 75 stopped by SIGTERM (of a cluster, or of a machine that
shuts down) or SIGHUP (a closed terminal), state saved; 76 a collective failed,
or the bucket does not answer; 77 no progress within the time limit; 78 a device
has computed wrongly (--config.guard.replay_every); 134 another process was lost
(JAX's own code). After 75, 76, 77, 78 and 134, start the command again. 130
stopped by Ctrl-C, state saved; a second Ctrl-C ends the process at once.

--eval_only runs the config's evaluations on the weights of
--config.init.checkpoint, at any resolution, and trains nothing.

On several machines, start the same command on each. On Cloud TPUs, GKE, Slurm
and Open MPI, the processes find each other. Elsewhere, pass
--coordinator_address, --num_processes and --process_id.
"""

import contextlib

import jax
from absl import flags
from ml_collections import config_flags

from vit_jax.config import listing
from vit_jax.plan import chips
from vit_jax.runtime import cluster, command_line
from vit_jax.training import evaluate, stages, train
from vit_jax.workdir import files, ledger

_CONFIG = config_flags.DEFINE_config_file(
  'config',
  help_string=(
    'Config file, with its argument: configs/NAME.py[:ARGUMENT]. NAME alone'
    ' stands for a config that comes with vit_jax, in any working directory.'
  ),
  lock_config=True,
)
_WORKDIR = flags.DEFINE_string(
  'workdir',
  None,
  'Directory of the run: checkpoints, metrics.jsonl, TensorBoard files. The'
  ' run resumes from it if it holds a checkpoint.',
)
_PRINT_CONFIG = command_line.define_optional(
  'print_config',
  'List the keys of the config with their values and meanings, and exit.'
  ' --print_config=TEXT lists only keys whose names contain TEXT.',
)
_ALLOW_CONFIG_CHANGE = flags.DEFINE_bool(
  'allow_config_change',
  False,
  'Continue in a work directory that was written with another config.',
)
_RESTART = flags.DEFINE_bool(
  'restart',
  False,
  'Start the run over if the checkpoints in its work directory are gone; the'
  ' old metrics are kept.',
)
_EVAL_ONLY = flags.DEFINE_bool(
  'eval_only',
  False,
  'Evaluate the weights of --config.init.checkpoint, and train nothing.',
)
_COMPILATION_CACHE = flags.DEFINE_string(
  'compilation_cache',
  'auto',
  'Directory for compiled programs, which a restart loads. auto:'
  ' WORKDIR/compilation_cache. none: keep no programs.',
)
_LEDGER = flags.DEFINE_string(
  'ledger',
  None,
  'A file that you keep: a run on TPUs or GPUs adds the time of its steps, and'
  ' that of vit_jax.plan --ledger=FILE.',
)
flags.adopt_module_key_flags(cluster)


def main():
  if _PRINT_CONFIG.value is not None:
    overridden = config_flags.get_override_values(flags.FLAGS['config'])
    print(listing.text(_CONFIG.value, overridden, _PRINT_CONFIG.value))
    return
  command_line.require('workdir')
  if _EVAL_ONLY.value and _RESTART.value:
    raise ValueError(
      '--restart starts a training run over, but --eval_only trains nothing:'
      ' leave one of the two out.'
    )
  cache = _COMPILATION_CACHE.value
  if cache == 'auto':
    cache = f'{_WORKDIR.value}/compilation_cache'
  if cache not in ('none', ''):
    # JAX reads it at its first compilation.
    jax.config.update('jax_compilation_cache_dir', str(files.absolute(cache)))
  with cluster.joined():
    options = {'allow_config_change': _ALLOW_CONFIG_CHANGE.value}
    if _EVAL_ONLY.value:
      start = evaluate.evaluate_only
    else:
      options['restart'] = _RESTART.value
      has_stages = 'stages' in _CONFIG.value
      start = stages.train_stages if has_stages else train.train_and_evaluate
    with _recording():
      start(_CONFIG.value, _WORKDIR.value, **options)


def _recording() -> contextlib.AbstractContextManager[None]:
  """Returns a context that adds the runs to the ledger, if there is one."""
  if not _LEDGER.value or jax.process_index():
    return contextlib.nullcontext()
  workdir, device = files.absolute(_WORKDIR.value), jax.devices()[0]
  names = _CONFIG.value.order if 'stages' in _CONFIG.value else ['']
  return ledger.recording(
    *(_LEDGER.value, [workdir / name for name in names]),
    *(device.platform, chips.name_of(device.device_kind)),
  )


if __name__ == '__main__':
  command_line.run(
    main,
    required=('config',),
    if_no_memory=(
      'To use less memory, set --config.model.remat=dots or full, raise'
      ' --config.accumulation_steps, split the parameters by'
      ' --config.mesh.fsdp, or lower --config.data.batch_size or'
      ' --config.evals.NAME.batch_size. python -m vit_jax.plan shows how much'
      ' memory a config needs.'
    ),
  )
