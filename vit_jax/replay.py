"""Checks a run by making steps of it again: `python -m vit_jax.replay RUN`.

  RUN                                 from its newest checkpoint but the last
  RUN --from=5000 --steps=1000        from the checkpoint of step 5000
  --certificate=RUN/certificate.json  checks files and weights first

The same steps on the same kind and number of devices give the same metrics and
the same states, bit by bit. The command compares them with those that the run
has recorded, evaluations included, and names the first step that differs, with
its metrics and arrays. It writes nothing, and may run beside the run itself.

A finished run has a certificate: its config, code, versions and data, the
fingerprints of its states, and its final metrics and weights. With one, also a
changed digit in metrics.jsonl or a changed weight is found.

On several machines, start the same command on each, as for vit_jax.main. Exit
codes: 0 everything is equal; 78 something differs; 1 the steps cannot be made
again here. On a GPU, the run and this command need --deterministic; without it,
runs on GPUs are not repeatable.
"""

import os
from collections.abc import Sequence

from absl import flags

from vit_jax.runtime import cluster, command_line
from vit_jax.training import replay

_FROM = flags.DEFINE_integer(
  'from',
  None,
  'The checkpoint to begin with; 0: the initial weights. Default: the newest'
  ' before the last row of metrics.',
  lower_bound=0,
)
_STEPS = flags.DEFINE_integer(
  'steps',
  None,
  'How many steps to make. Default: up to the last row of metrics.',
  lower_bound=1,
)
_CERTIFICATE = flags.DEFINE_string(
  'certificate',
  None,
  'A certificate.json to check the run against. RUN may be left out if the'
  ' certificate is in its directory.',
)
_DATA = flags.DEFINE_string(
  'data', '', 'Data spec of the training data, if they have been moved.'
)
flags.adopt_module_key_flags(cluster)


def main(words: Sequence[str]) -> None:
  if len(words) > 1 or not (words or _CERTIFICATE.value):
    raise ValueError(
      f'expected the directory of one run, or --certificate=FILE in it, not'
      f' {list(words)}.'
    )
  run = words[0] if words else os.path.dirname(_CERTIFICATE.value) or '.'
  with cluster.joined():
    print(
      replay.replay(
        run,
        first=_FROM.value,
        steps=_STEPS.value,
        certificate=_CERTIFICATE.value,
        dataset=_DATA.value,
      )
    )


if __name__ == '__main__':
  command_line.run(
    main,
    arguments='the directory of a run, such as runs/birds',
    optional=True,
  )
