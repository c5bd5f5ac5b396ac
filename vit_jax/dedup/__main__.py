"""Finds near-duplicates of test images: `python -m vit_jax.dedup ...`

  --data=folder:/data/photos --test=tfds:cifar10 --to=dedup
  --data=tfds:imagenet2012 --test=tfds:cifar10 --test=tfds:cifar100 --to=dedup
  --data=... --split='train[:98%]' --test=... --test_split=validation --to=DIR
  --data=folder:/data/photos --to=DIR            inside one set, each pair once
  --data=... --test=... --to=gs://bucket/dir --part=3/16     one of 16 machines

A near-duplicate is the same picture: compressed, resized, cropped by up to 10%
of each side, grey, darker, richer in contrast, or with --flips mirrored.
docs/dedup.md has how many of each kind are found. DIR, given by --to, gets

  exclude.json       images of --data to leave out, for SPEC,exclude=FILE
  exclude_test.json  test images with near-duplicates; with several --test
                     exclude_test_1.json and so on, in their order
  pairs.csv          the pairs; pairs.html shows them, the most doubtful first

Use the lists in any data spec, and with clean=FILE of configs/finetune.py and
configs/pretrain.py, which measures the accuracy without such test images. Look
at pairs.html first.

The same command continues an interrupted one. --part=K/N does every N-th block
of --data; DIR must be the same on all machines. The one that ends last writes
the lists. Needs faiss: pip install "vit-paper-jax[dedup]".

Exit codes: 0 this part is done; 1 an error; 3 done, but some images could not
be read. They are named in the log, and not compared.
"""

import sys

from absl import flags

from vit_jax.data import source_flags
from vit_jax.data.ops import decoding
from vit_jax.dedup import report, sets, work
from vit_jax.runtime import command_line, installed, printable
from vit_jax.workdir import files

flags.adopt_module_key_flags(source_flags)
_DATA = flags.DEFINE_string(
  'data', None, 'Data spec of the images to clean, such as folder:/data/photos.'
)
_SPLIT = flags.DEFINE_string('split', 'train', 'Split expression of --data.')
_TEST = flags.DEFINE_multi_string(
  'test',
  [],
  'Data spec of test images; may be repeated. Without it, the images of --data'
  ' are compared with each other.',
)
_TEST_SPLIT = flags.DEFINE_multi_string(
  'test_split',
  ['test'],
  'Split expression of --test: one for all, or one for each, in their order.',
)
_TO = flags.DEFINE_string(
  'to', None, 'Directory for the results, local or in a bucket.'
)
_PART = flags.DEFINE_string(
  'part', '0/1', 'K/N: this machine does the K-th of N parts, from 0 on.'
)
_FLIPS = flags.DEFINE_bool(
  'flips', False, 'Also find mirrored images; the search takes twice as long.'
)
_MIN_CORRELATION = flags.DEFINE_float(
  'min_correlation',
  0.8,
  'The least correlation of the details of near-duplicates. Another value needs'
  ' no new comparison.',
  lower_bound=report.NEAR_MISS,
  upper_bound=1,
)
_MAX_DISTANCE = flags.DEFINE_integer(
  'max_distance',
  work.Work.max_distance,
  'Pixels are compared if the hashes differ in at most this many of 128 bits.',
  lower_bound=0,
  upper_bound=48,
)


def main() -> None:
  decoding.own_process()
  installed.require('faiss', extra='dedup', what='python -m vit_jax.dedup')
  part, parts = command_line.parse_part(_PART.value)
  images, tests = _sets()
  job = work.Work(
    *(files.absolute(_TO.value), images, tests),
    max_distance=_MAX_DISTANCE.value,
    flips=_FLIPS.value,
  )
  job.run(part, parts)
  if missing := job.missing():
    print(
      f'Part {part}/{parts} is done. {missing:,} blocks of other parts are'
      ' missing. The part that ends last writes the lists; if one was lost,'
      ' start its command again, or this one without --part.'
    )
  else:
    found = report.judge(job.pairs(), _MIN_CORRELATION.value)
    for line in report.write(job, found):
      print(printable.text(line))
    print(f'Look at {job.folder / report.PAGE}.')
  if (job.states() == work.UNREADABLE).any():
    sys.exit(command_line.UNREADABLE)


def _sets() -> tuple[sets.Set, list[sets.Set]]:
  splits, tests = _TEST_SPLIT.value, _TEST.value
  if len(splits) == 1:
    splits = splits * len(tests)
  if len(splits) != len(tests):
    raise ValueError(
      f'{len(splits)} --test_split for {len(tests)} --test: give one for all,'
      ' or one for each.'
    )
  options = source_flags.arguments()
  images = sets.open_set(_DATA.value, _SPLIT.value, **options)
  opened = []
  for spec, split in zip(tests, splits, strict=True):
    test = sets.open_set(spec, split, data_dir=options['data_dir'])
    if shared := images.view.shared(test.view):
      raise ValueError(
        f'--split={_SPLIT.value} and --test_split={split} may share'
        f' {shared:,} images of {spec}: each would be its own duplicate.'
      )
    opened.append(test)
  return images, opened


if __name__ == '__main__':
  command_line.run(main, required=('data', 'to'))
