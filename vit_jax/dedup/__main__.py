"""Finds near-duplicates of test images: `python -m vit_jax.dedup ...`

  --data=folder:/data/photos --test=tfds:cifar10 --to=dedup
  --data=tfds:imagenet2012 --test=tfds:cifar10 --test=tfds:cifar100 --to=dedup
  --data=... --split='train[:98%]' --test=... --test_split=validation --to=DIR
  --data=folder:/data/photos --to=DIR            inside one set, each pair once
  --data=... --test=... --to=gs://bucket/dir --part=3/16     one of 16 machines
  --data=... --test=... --to=DIR --checkpoint=augreg/B_16         features, too

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

from absl import flags, logging

from vit_jax.data.ops import decoding
from vit_jax.dedup import page, report, search, sets, similar, work
from vit_jax.inspection import model_flags
from vit_jax.predict import predictor
from vit_jax.runtime import command_line, printable
from vit_jax.workdir import files

flags.adopt_module_key_flags(model_flags)
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
  lower_bound=0,
  upper_bound=1,
)
_MAX_DISTANCE = flags.DEFINE_integer(
  'max_distance',
  work.Settings.max_distance,
  'Pixels are compared if the hashes differ in at most this many of 128 bits.',
  lower_bound=0,
  upper_bound=48,
)
_MIN_COSINE = flags.DEFINE_float(
  'min_cosine',
  0.95,
  'With --checkpoint: pixels are also compared if the cosine of the features is'
  ' at least this.',
  lower_bound=-1,
  upper_bound=1,
)
_BLOCK_SIZE = flags.DEFINE_integer(
  'block_size',
  work.Settings.block_size,
  'Images of a block; an interruption costs at most one.',
  lower_bound=1,
)
_THREADS = flags.DEFINE_integer(
  'threads',
  work.Settings.threads,
  'Threads that decode and compare; by default one per core.',
  lower_bound=1,
)
_SHOWN = flags.DEFINE_integer(
  'shown', 300, 'The most pairs in each section of pairs.html.', lower_bound=0
)
_BATCH_SIZE = flags.DEFINE_integer(
  'batch_size',
  None,
  'With --checkpoint: images of a batch, over all devices.',
  lower_bound=1,
)
_DATA_DIR = flags.DEFINE_string(
  'data_dir', '', "Folder of the prepared TFDS data ('': TFDS's default)."
)
_IMAGE_KEY = flags.DEFINE_string(
  'image_key', 'image', 'TFDS feature of --data that holds the image.'
)
_LABEL_KEY = flags.DEFINE_string(
  'label_key', 'label', 'TFDS feature of --data that holds the label.'
)
_NUM_CLASSES = flags.DEFINE_integer(
  'num_classes',
  0,
  'Number of classes of a TFDS label of --data without class names.',
  lower_bound=0,
)


def main() -> None:
  decoding.own_process()
  search.check_faiss('python -m vit_jax.dedup')
  part, parts = command_line.parse_part(_PART.value)
  if _MIN_CORRELATION.value < report.NEAR_MISS:
    raise ValueError(
      f'--min_correlation={_MIN_CORRELATION.value:g} would take any two images'
      f' for duplicates; give at least {report.NEAR_MISS:g}.'
    )
  if _checkpoint() and parts > 1:
    raise ValueError(
      f'--checkpoint with --part={_PART.value}: leave --checkpoint out of the'
      ' parts, and start the command with it and without --part at the end.'
    )
  images, tests = _sets()
  job = work.Work(
    files.absolute(_TO.value),
    images,
    tests,
    work.Settings(
      max_distance=_MAX_DISTANCE.value,
      flips=_FLIPS.value,
      block_size=_BLOCK_SIZE.value,
      threads=_THREADS.value,
    ),
  )
  job.run(part, parts)
  if missing := job.missing():
    print(
      f'Part {part}/{parts} is done. {missing:,} blocks of other parts are'
      ' missing. The part that ends last writes the lists; if one was lost,'
      ' start its command again, or this one without --part.'
    )
  else:
    _report(job)
  if job.unreadable():
    sys.exit(command_line.UNREADABLE)


def _checkpoint() -> str | None:
  return model_flags.CHECKPOINT.value


def _sets() -> tuple[sets.Set, list[sets.Set]]:
  splits, tests = _TEST_SPLIT.value, _TEST.value
  if len(splits) == 1:
    splits = splits * len(tests)
  if len(splits) != len(tests):
    raise ValueError(
      f'{len(_TEST_SPLIT.value)} --test_split for {len(tests)} --test: give one'
      ' for all, or one for each.'
    )
  images = sets.open_set(
    'data',
    _DATA.value,
    _SPLIT.value,
    data_dir=_DATA_DIR.value,
    image_key=_IMAGE_KEY.value,
    label_key=_LABEL_KEY.value,
    num_classes=_NUM_CLASSES.value,
  )
  opened = [
    sets.open_set('test', test, split, data_dir=_DATA_DIR.value)
    for test, split in zip(tests, splits, strict=True)
  ]
  for test in opened:
    if shared := images.view.shared(test.view):
      raise ValueError(
        f'--split={_SPLIT.value} and --test_split={test.view.split} may'
        f' share {shared:,} images of {images.spec}: each would be its own'
        ' duplicate.'
      )
  return images, opened


def _report(job: work.Work) -> None:
  alike = _similar(job) if _checkpoint() else None
  found = report.judge(job.pairs(), alike, _MIN_CORRELATION.value)
  summary = report.write(job, found)
  page.write(
    job,
    found,
    summary,
    min_correlation=_MIN_CORRELATION.value,
    shown=_SHOWN.value,
  )
  for line in summary:
    print(printable.text(line))
  print(
    f'{len(found.duplicates):,} pairs are near-duplicates, of'
    f' {found.candidates:,} with similar hashes; {len(found.near_misses):,}'
    f' nearly are. Look at {job.folder / page.FILE}.'
  )
  for stage, seconds in job.seconds.items():
    logging.info('%s took %s', stage, printable.duration(seconds))


def _similar(job: work.Work):
  model = predictor.load(
    _checkpoint(), batch_size=_BATCH_SIZE.value, **model_flags.arguments()
  )
  logging.info('%s', printable.text(str(model)))
  folder = job.folder / 'features'
  of_images = similar.extract(model, folder, 'data', job.images)
  of_queries = [
    similar.extract(model, folder, f'test_{i + 1}', test)
    for i, test in enumerate(job.tests)
  ] or [of_images]
  return similar.find(
    job.images,
    of_images,
    job.queries,
    of_queries,
    _MIN_COSINE.value,
    inside=not job.tests,
  )


if __name__ == '__main__':
  command_line.run(main, required=('data', 'to'))
