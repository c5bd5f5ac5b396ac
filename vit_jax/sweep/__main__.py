"""Runs a sweep: `python -m vit_jax.sweep --sweep=FILE --workdir=DIR`.

  --sweep=configs/sweeps/digits.py           the protocol in minutes, on a CPU
  --sweep=configs/sweeps/finetune.py:ViT-B/16,cifar10+cifar100+pets+flowers
  --sweep=configs/sweeps/regularisation.py:ViT-B/16,imagenet2012
  --set=KEY=VALUE                    sets a key of the config in all runs
  --dry_run                          checks all configs, prints the commands

The sweep compares candidates by their accuracy on held-out training data, and
makes the runs to report from the best candidate. It refuses any other choice,
such as one by the accuracy on the test split, before it starts a run.

Run it again with the same flags to continue: finished runs remain, interrupted
runs resume, failed runs are tried again. Exit codes: 0 all runs finished; 1 an
error, or a run ended with one; 75 SIGTERM, SIGHUP or Ctrl-C.

Results: DIR/results.md; logs in DIR/logs, runs in DIR/runs. To see the results
so far: python -m vit_jax.sweep.table --workdir=DIR.
"""

from absl import flags

from vit_jax.runtime import command_line
from vit_jax.sweep import running

_SWEEP = flags.DEFINE_string(
  'sweep',
  None,
  'Sweep file, with its argument: configs/sweeps/NAME.py[:ARG]. In any folder,'
  ' NAME alone selects a file that comes with vit_jax.',
)
flags.adopt_module_key_flags(running)


def main() -> None:
  running.run(_SWEEP.value)


if __name__ == '__main__':
  command_line.run(main, required=('sweep', 'workdir'))
