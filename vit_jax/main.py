"""Trains and evaluates: `python -m vit_jax.main --config=FILE --workdir=DIR`.

  --config=configs/quickstart.py                  the whole story in minutes
  --config=configs/pretrain.py:ViT-B/16,imagenet2012
  --config=configs/finetune.py:ViT-B/16,folder:/data/pets
  --config.KEY=VALUE                 overrides any key of vit_jax/config/keys.py

Run it again with the same flags to go on where it stopped. Exit codes: 0 all
was done; 1 an error; 75 stopped by SIGTERM or the cloud, state saved; 76
another process was lost, or the bucket does not answer; 77 nothing moved any
more. After the last three, start it again. 130 stopped by Ctrl-C, state saved;
a second one ends it at once.

--eval_only runs the config's evaluations on the weights that
--config.init.checkpoint names, at any resolution, and trains nothing.

On several machines start the same command on each. Cloud TPUs, GKE, Slurm and
Open MPI tell the processes of each other; elsewhere the three flags do.
"""
# ruff: noqa: E402

import os
import signal


def _end_at_once(number: int, _) -> None:
  """Of a signal while Python imports, which takes seconds."""
  name = signal.Signals(number).name
  text = f'ended: {name} while nothing was trained; nothing is lost.\n'
  os.write(2, text.encode())
  os._exit({signal.SIGTERM: 75, signal.SIGINT: 130}[number])


if __name__ == '__main__':
  # `preemption` takes over. A shell's background job ignores Ctrl-C.
  for _number in (signal.SIGTERM, signal.SIGINT):
    if signal.getsignal(_number) != signal.SIG_IGN:
      signal.signal(_number, _end_at_once)

import jax
from absl import flags
from ml_collections import config_flags

from vit_jax.runtime import command_line, compilation, distributed, logs
from vit_jax.training import evaluate_only, loop, stages
from vit_jax.workdir import files

_CONFIG = config_flags.DEFINE_config_file(
  'config',
  help_string=(
    'Config file, with its argument: configs/NAME.py[:ARGUMENT]. NAME alone is'
    ' one that comes with vit_jax, in any folder.'
  ),
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
_RESTART = flags.DEFINE_bool(
  'restart',
  False,
  'Begin anew if the checkpoints of the run in the work directory are gone; the'
  ' old numbers are kept.',
)
_EVAL_ONLY = flags.DEFINE_bool(
  'eval_only',
  False,
  'Evaluate the weights of --config.init.checkpoint, and train nothing.',
)
_COORDINATOR = flags.DEFINE_string(
  'coordinator_address',
  None,
  'HOST:PORT of process 0, for several processes where the cluster does not'
  ' tell. They also use the port above it.',
)
_NUM_PROCESSES = flags.DEFINE_integer(
  'num_processes', None, 'How many processes there are.', lower_bound=1
)
_PROCESS_ID = flags.DEFINE_integer(
  'process_id', None, 'Which of them this is, from 0.', lower_bound=0
)
_START_TIMEOUT = flags.DEFINE_float(
  'start_timeout', 300.0, 'Seconds for all processes to come.', lower_bound=1
)
_LOST_TIMEOUT = flags.DEFINE_float(
  'lost_timeout',
  60.0,
  'Seconds without a sign of life after which a process is lost.',
  lower_bound=1,
)
_COMPILATION_CACHE = flags.DEFINE_string(
  'compilation_cache',
  'auto',
  'Directory of compiled programs, which a restart then loads; auto is'
  ' WORKDIR/compilation_cache, none keeps none.',
)
_DETERMINISTIC = flags.DEFINE_bool(
  'deterministic',
  False,
  'On a GPU, compute the same thing bitwise twice, which takes longer. CPUs and'
  ' TPUs do so anyway.',
)


def main():
  if _DETERMINISTIC.value:
    compilation.make_deterministic()
  cache = _COMPILATION_CACHE.value
  if cache == 'auto':
    cache = files.absolute(_WORKDIR.value) / 'compilation_cache'
  with distributed.connected(
    coordinator_address=_COORDINATOR.value,
    num_processes=_NUM_PROCESSES.value,
    process_id=_PROCESS_ID.value,
    start_timeout=_START_TIMEOUT.value,
    lost_timeout=_LOST_TIMEOUT.value,
  ):
    if jax.process_index():
      logs.only_warnings()
    cache = None if cache == 'none' else files.absolute(cache)
    try:
      if _EVAL_ONLY.value:
        evaluate_only.evaluate_only(
          _CONFIG.value,
          _WORKDIR.value,
          allow_config_change=_ALLOW_CONFIG_CHANGE.value,
          compilation_cache=cache,
        )
        return
      several = 'stages' in _CONFIG.value
      train = stages.run if several else loop.train_and_evaluate
      train(
        _CONFIG.value,
        _WORKDIR.value,
        allow_config_change=_ALLOW_CONFIG_CHANGE.value,
        restart=_RESTART.value,
        compilation_cache=cache,
      )
    finally:
      # The message of `_end_at_once` is no longer true. A late SIGTERM must not
      # change the exit code.
      for number, action in (
        (signal.SIGTERM, signal.SIG_IGN),
        (signal.SIGINT, signal.SIG_DFL),
      ):
        if signal.getsignal(number) is _end_at_once:
          signal.signal(number, action)


if __name__ == '__main__':
  command_line.run(
    main,
    required=('config', 'workdir'),
    if_no_memory=(
      'Less is needed with --config.model.remat=dots or full, a larger'
      ' --config.accumulation_steps, parameters split by --config.mesh.fsdp, a'
      ' smaller --config.data.batch_size or --config.evals.NAME.batch_size.'
      ' python -m vit_jax.plan tells how much.'
    ),
  )
