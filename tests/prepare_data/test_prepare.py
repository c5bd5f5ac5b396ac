"""Guards the result of a preparation, whatever happens on the way."""

import collections
import csv
import hashlib
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow_datasets as tfds
import yaml

from tests.prepare_data import imagenet21k, odd_files
from vit_jax import data
from vit_jax.data import exclusion, permutation
from vit_jax.prepare_data import prepare, tars


def run(spec, to, part=(0, 1), **options):
  """Prepares a source in this process; returns the report."""
  kind, _, path = spec.partition(':')
  source = tars.Tars(path) if kind == 'tar' else data.open_source(spec)
  job = prepare.describe(source, str(to), **options)
  return prepare.run(job, part=part)


def hashes(folder):
  """Returns name -> digest of the files of a prepared data set."""
  return {
    path.name: hashlib.sha256(path.read_bytes()).hexdigest()
    for path in sorted(pathlib.Path(folder).iterdir())
    if path.is_file()
  }


def records(source, split='train'):
  view = data.View(source, split)
  return [view[i] for i in range(len(view))]


def table(path):
  with open(path, encoding='utf-8') as f:
    return list(csv.DictReader(f))


def facts(report, split='train'):
  """Returns what a report tells about a split."""
  return yaml.safe_load(report)[split]


@pytest.fixture(scope='module')
def birds(tmp_path_factory):
  """Returns a folder with two splits, three classes and 40 images."""
  root = tmp_path_factory.mktemp('data') / 'birds'
  rng = np.random.default_rng(0)
  for i in range(40):
    split = 'test' if i % 4 == 3 else 'train'
    path = root / split / ['owl', 'wren', 'auk'][i % 3] / f'{i}.jpg'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(imagenet21k.picture(rng))
  return root


@pytest.mark.parametrize('shuffled', [True, False])
def test_readers_agree(birds, tmp_path, shuffled):
  run(f'folder:{birds}', tmp_path, count=3, shuffled=shuffled)
  folder = tmp_path / 'birds/1.0.0'
  source = data.open_source(f'folder:{birds}')
  ours = data.open_source(f'arrayrecord:{tmp_path}/birds')
  assert ours.info.class_names == source.info.class_names
  assert ours.info.splits == {'train': 30, 'test': 10}
  for split in ('train', 'test'):
    original = records(source, split)
    if shuffled:
      order = permutation.permute(np.arange(len(original)), len(original), 0)
      original = [original[i] for i in order]
    expected = [(r.image, r.label) for r in original]
    assert [(r.image, r.label) for r in records(ours, split)] == expected
    raw = tfds.builder_from_directory(folder).as_data_source(
      split, decoders={'image': tfds.decode.SkipDecoding()}
    )
    assert [(e['image'], int(e['label'])) for e in raw] == expected
    names = [e['file_name'].decode() for e in raw]
    assert names == [os.path.relpath(r.name, birds) for r in original]


def test_odd_files_end_as_documented(tmp_path):
  root = tmp_path / 'odd/train/thing'
  root.mkdir(parents=True)
  for name, (content, _, _) in odd_files.FILES.items():
    (root / name).write_bytes(content)
  (root / 'gone.jpg').symlink_to('nowhere.jpg')
  (root / 'notes.txt').write_text('no image')
  report = run(f'folder:{tmp_path}/odd', tmp_path / 'out')
  folder = tmp_path / 'out/odd/1.0.0'
  aside = {row['name']: row for row in table(folder / 'set_aside.csv')}
  gone = aside.pop('train/thing/gone.jpg')
  assert gone['reason'] == 'No such file or directory'
  outcomes = collections.defaultdict(set)
  for name, (_, what, _) in odd_files.FILES.items():
    outcomes[what].add(f'train/thing/{name}')
  assert set(aside) == outcomes[odd_files.SET_ASIDE]
  found = facts(report)
  assert found['found'] == len(odd_files.FILES) + 1
  assert found['records'] == found['found'] - len(aside) - 1
  assert found['converted'] == len(outcomes[odd_files.CONVERTED])
  assert found['set_aside'] == len(aside) + 1
  assert '.txt: 1' in report
  kept = {r.image for r in records(data.open_source(f'arrayrecord:{folder}'))}
  for name, (content, what, _) in odd_files.FILES.items():
    assert (content in kept) == (what == odd_files.KEPT), name


@pytest.mark.gate
@pytest.mark.parametrize(
  'nested, merged', [('', False), ('winter21_whole', True)]
)
def test_imagenet21k_comes_out_as_its_generator_knows_it(
  tmp_path, nested, merged
):
  wanted, damaged = imagenet21k.write(
    *(tmp_path / 'i21k',),
    **dict(classes=60, images=20, corrupt=0.01, shared=0.1, nested=nested),
  )
  assert len(damaged) > 5
  assert sum(len(of) > 1 for of in wanted.values()) > 50
  run(f'tar:{tmp_path}/i21k', tmp_path / 'out', count=7, merged=merged)
  source = data.open_source(f'arrayrecord:{tmp_path}/out')
  names, made = source.info.class_names, collections.defaultdict(list)
  for record in records(source):
    assert not (merged and record.image in made)
    made[record.image] += [names[i] for i in np.atleast_1d(record.label)]
  assert {image: sorted(of) for image, of in made.items()} == wanted
  aside = table(tmp_path / 'out/i21k/1.0.0/set_aside.csv')
  names = [re.split('[:/]', row['name'])[-1] for row in aside]
  if merged:  # The first of the damaged images that are equal.
    assert set(names) < set(damaged)
  else:
    assert sorted(names) == sorted(damaged)


@pytest.fixture(scope='module')
def many(tmp_path_factory):
  """Returns tar files of 500 images."""
  root = tmp_path_factory.mktemp('many') / 'many'
  imagenet21k.write(root, classes=10, images=50, corrupt=0.01, shared=0.05)
  return root


@pytest.fixture(scope='module')
def uninterrupted(many, tmp_path_factory):
  to = tmp_path_factory.mktemp('uninterrupted')
  run(f'tar:{many}', to, count=8)
  return hashes(to / 'many/1.0.0')


@pytest.mark.slow  # Four whole preparations; a part of one is in other tests.
def test_a_killed_command_ends_with_the_same_files(
  many, uninterrupted, tmp_path
):
  words = [sys.executable, '-m', 'vit_jax.prepare_data', '--processes=2']
  words += [f'--source=tar:{many}', f'--to={tmp_path}', '--shards=8']
  folder = tmp_path / 'many/1.0.0'
  kills = 0
  for files in (1, 3, 6):
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    while process.poll() is None:
      if len(list(folder.glob('*array_record*'))) >= files:
        process.send_signal(signal.SIGKILL)
        kills += process.wait() == -signal.SIGKILL
      time.sleep(0.005)
  assert kills >= 2
  made = folder.glob('*array_record*')
  written = {path.name: path.stat().st_mtime_ns for path in made}
  subprocess.run(words, check=True, capture_output=True)
  assert hashes(folder) == uninterrupted
  assert not (folder / '.preparing').exists()
  # Of what was written, only the shards in progress were written again.
  again = [n for n, t in written.items() if (folder / n).stat().st_mtime_ns > t]
  assert len(again) <= 2


def test_parts_share_the_work(many, uninterrupted, tmp_path, command):
  tmp_path /= 'a b'
  words = [f'--source=tar:{many}', f'--to={tmp_path}']
  words += ['--shards=8', '--processes=1']
  parts = [
    command('vit_jax.prepare_data', *words, f'--part={k}/2') for k in (0, 1)
  ]
  assert [done.returncode for done in parts] == [0, 0]
  assert hashes(tmp_path / 'many/1.0.0') == uninterrupted
  [report] = [done.stdout for done in parts if 'found: ' in done.stdout]
  assert shlex.split(report)[-1] == f'--config.data.data_dir={tmp_path}'


def test_done_is_done_and_other_options_are_refused(birds, tmp_path):
  first = run(f'folder:{birds}', tmp_path)
  folder = tmp_path / 'birds/1.0.0'
  before = hashes(folder)
  assert run(f'folder:{birds}', tmp_path) == first
  assert hashes(folder) == before
  with pytest.raises(ValueError, match='order: "shuffled" then, "source" now'):
    run(f'folder:{birds}', tmp_path, shuffled=False)
  (folder / 'report.json').unlink()
  with pytest.raises(ValueError, match='has not written'):
    run(f'folder:{birds}', tmp_path)


def test_an_exclusion_list_changes_no_name(birds, tmp_path):
  whole = data.open_source(f'folder:{birds}')
  exclusion.write(tmp_path / 'exclude.json', whole, {'train': [0]})
  run(f'folder:{birds},exclude={tmp_path}/exclude.json', tmp_path)
  made = tfds.builder_from_directory(tmp_path / 'birds/1.0.0')
  names = {e['file_name'].decode() for e in made.as_data_source('train')}
  every = [os.path.relpath(r.name, birds) for r in records(whole)]
  assert names == set(every[1:])


def test_class_names_keep_their_numbers(tmp_path):
  for name in (' cat', 'cat', '\u3000', 'zebra'):
    path = tmp_path / 'odd/train' / name / '1.png'
    path.parent.mkdir(parents=True)
    path.write_bytes(odd_files.PNG)
  run(f'folder:{tmp_path}/odd', tmp_path / 'out', shuffled=False)
  made = data.open_source(f'arrayrecord:{tmp_path}/out')
  assert made.info.class_names == ('cat', 'cat_', 'zebra', 'unnamed')
  assert [record.label for record in records(made)] == [0, 1, 2, 3]


def test_damaged_tar_files_are_named(many, tmp_path, command):
  root = tmp_path / 'cut'
  root.mkdir()
  path = min(many.iterdir())
  (root / path.name).write_bytes(path.read_bytes()[:20_000])
  words = [f'--source=tar:{root}', f'--to={tmp_path}/out', '--processes=1']
  done = command('vit_jax.prepare_data', *words)
  assert done.returncode == 1
  assert path.name in done.stderr
  done = command('vit_jax.prepare_data', *words, '--skip_damaged')
  assert done.returncode == 0
  assert f'{path.name} is damaged after {path.stem}_' in done.stdout


@pytest.mark.parametrize(
  'words, code, message',
  [
    (['--dry_run'], 0, 'train: 30 images, about'),
    (['--part=2/2'], 1, '--part=2/2: expected K/N'),
    (['--order=any'], 1, 'one of <shuffled|source>'),
  ],
)
def test_the_command_writes_nothing(
  birds, tmp_path, words, code, message, command
):
  flags = (f'--source=folder:{birds}', f'--to={tmp_path}')
  done = command('vit_jax.prepare_data', *flags, *words)
  assert done.returncode == code
  assert message in done.stderr
  assert not list(tmp_path.iterdir())
