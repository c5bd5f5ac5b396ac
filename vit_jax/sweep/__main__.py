"""Runs a sweep: `python -m vit_jax.sweep --sweep=FILE --workdir=DIR`.

  --sweep=configs/sweeps/digits.py           the protocol in minutes, on a CPU
  --sweep=configs/sweeps/finetune.py:ViT-B/16,cifar10+cifar100+pets+flowers
  --sweep=configs/sweeps/regularisation.py:ViT-B/16,imagenet2012
  --set=KEY=VALUE                    sets a key of the config in all runs
  --dry_run                          checks all configs, prints the commands

Candidates are compared by their accuracy on held-out training data, and the
runs to report are made from the best. To compare them by anything else, such
as the accuracy on the test split, is refused before anything starts.

Run it again with the same flags to go on: finished runs stay, cut off ones
resume, failed ones are tried again. Exit codes: 0 all was done; 1 an error, or
a run failed --retries times more; 75 stopped by SIGTERM or Ctrl-C.

Results: DIR/results.csv, results.md; logs in DIR/logs, runs in DIR/runs. So far
and without waiting: python -m vit_jax.sweep.table --workdir=DIR.
"""

from absl import flags

from vit_jax.runtime import command_line
from vit_jax.sweep import running

_SWEEP = flags.DEFINE_string(
  'sweep',
  None,
  'Sweep file, with its argument: configs/sweeps/NAME.py[:ARG]. NAME alone is'
  ' one that comes with vit_jax, in any folder.',
)
flags.adopt_module_key_flags(running)


def main() -> None:
  running.run(_SWEEP.value)


if __name__ == '__main__':
  command_line.run(main, required=('sweep', 'workdir'))
