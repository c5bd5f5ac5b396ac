"""Guards: all links in README and docs lead somewhere, and the site builds."""

import ast
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from tests.docs import fenced
from tests.launch.worker.test_locks import setup_py

ROOT = pathlib.Path(__file__).parents[2]
PAGES = sorted(
  path.relative_to(ROOT)
  for folder in ('.', 'docs', 'launch')
  for path in (ROOT / folder).glob('*.md')
)
_FENCE = re.compile(r'^```.*?^```', re.MULTILINE | re.DOTALL)
_LINK = re.compile(r'\]\(([^)\s]+)\)')
_INCLUDE = re.compile(r'^```{include} (\S+)', re.MULTILINE)
_QUICKSTART = re.compile(
  r'^\| Quickstart, .*\| ([\d.]+) to ([\d.]+)% fine-tuned, ([\d.]+) to'
  r' ([\d.]+)% from scratch \|',
  re.MULTILINE,
)
# Accuracies of one seed differ by so many points between machines.
_POINTS = 3
_HEADING = re.compile(r'^#+ (.+)$', re.MULTILINE)


def anchors(page: pathlib.Path) -> set[str]:
  """Returns the anchors that GitHub and Sphinx make from a page's headings."""
  text = page.read_text()
  found = {
    re.sub(r'[^\w\- ]', '', heading.lower()).replace(' ', '-')
    for heading in _HEADING.findall(_FENCE.sub('', text))
  }
  for included in _INCLUDE.findall(text):
    found |= anchors(page.parent / included)
  return found


@pytest.mark.parametrize('page', PAGES, ids=str)
def test_links_lead_somewhere(page):
  text = (ROOT / page).read_text()
  for link in _LINK.findall(_FENCE.sub('', text)):
    if '://' in link:
      continue
    path, _, anchor = link.partition('#')
    target = (ROOT / page).parent / path if path else ROOT / page
    assert target.exists(), link
    if anchor:
      assert anchor in anchors(target), link


def test_every_page_is_linked_from_the_readme():
  text = (ROOT / 'README.md').read_text()
  # `index` and `launch` repeat the README or include another page. pods.md
  # links to `processes`.
  others = {'index.md', 'launch.md'}
  pages = {page.name for page in PAGES if page.parent.name == 'docs'} - others
  assert {page for page in pages if f'](docs/{page})' not in text} == set()


def test_what_is_said_of_extras_is_right():
  extras = {
    extra: {re.match(r'[\w-]+', line)[0] for line in lines}
    for extra, lines in setup_py()['EXTRAS'].items()
  }
  page = (ROOT / 'docs/install.md').read_text()
  assert {*re.findall(r'[`\[](\w+)[`\]]', page)} >= {*extras}
  for file in PAGES:
    for said in re.findall(r'-jax\[([\w,]+)\]', (ROOT / file).read_text()):
      assert {*said.split(',')} <= {*extras}, file
  own = set().union(*extras.values())
  calls = named = 0
  folders = (ROOT / name for name in ('vit_jax', 'configs', 'launch'))
  for file in itertools.chain(*(folder.rglob('*.py') for folder in folders)):
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
      if isinstance(node, ast.Constant) and isinstance(node.value, str):
        # An extra installs a version that is known to work.
        said = {*re.findall(r'pip install ([\w-]+)', node.value)}
        assert not said & own, file
        for name in re.findall(r'pip install "([^"]+\[\w+\])"', node.value):
          assert name in {f'vit-paper-jax[{extra}]' for extra in extras}, file
          named += 1
      if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
        'installed.require'
      ):
        calls += 1
        [extra] = [k.value for k in node.keywords if k.arg == 'extra']
        packages = {
          *re.findall(r"'(\w+)'", ' '.join(map(ast.unparse, node.args)))
        }
        known = {name.removesuffix('-cpu') for name in extras[extra.value]}
        assert packages <= known, (file, packages)
  assert calls > 9
  assert named > 5


def _documented() -> list[tuple[float, float]]:
  """Returns the lowest and highest accuracy, fine-tuned and from scratch."""
  [found] = _QUICKSTART.findall((ROOT / 'README.md').read_text())
  low, high, *scratch = map(float, found)
  return [(low, high), tuple(scratch)]


@pytest.mark.slow  # Three minutes of all cores.
def test_the_quickstart_is_as_accurate_as_documented(tmp_path):
  [words] = (
    own
    for place, block in fenced.blocks('sh')
    if place.startswith('README.md:')
    for command in fenced.commands(block)
    for own in fenced.ours(command)
    if '--config=configs/quickstart.py' in own
  )
  words = [word for word in words if not word.startswith('--workdir=')]
  command = [sys.executable, '-m', *words, f'--workdir={tmp_path}']
  # Not with the eight devices of the other tests: another split of a batch
  # gives other accuracies.
  environment = os.environ | {'XLA_FLAGS': ''}
  subprocess.run(command, cwd=ROOT, env=environment, check=True)
  for stage, (low, high) in zip(
    ('finetune', 'scratch'), _documented(), strict=True
  ):
    lines = (tmp_path / stage / 'metrics.jsonl').read_text().splitlines()
    found = {
      key: value for row in map(json.loads, lines) for key, value in row.items()
    }
    assert found['test/count'] == 546
    accuracy = 100 * found['test/accuracy']
    assert low - _POINTS < accuracy < high + _POINTS, stage
