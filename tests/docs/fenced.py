"""Reads the fenced commands and Python blocks of the documentation.

`python -m tests.docs.fenced` reads commands, each a list of a module and flags,
as JSON. It starts each as a user does, with its own parser and checks, but ends
it before it does anything. It prints what is wrong with each, as JSON.
"""

import ast
import inspect
import io
import itertools
import json
import os
import pathlib
import re
import runpy
import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import Any

ROOT = pathlib.Path(__file__).parents[2]
PAGES = sorted(
  path.relative_to(ROOT)
  for pattern in ('*.md', 'docs/*.md', 'launch/*.md', 'benchmarks/*.md')
  for path in ROOT.glob(pattern)
)


def blocks(language: str) -> Iterator[tuple[str, str]]:
  """Yields `page:line` and the text of each block in a language."""
  for page in PAGES:
    text = (ROOT / page).read_text()
    for found in re.finditer(
      rf'^( *)```{language}\n(.*?)^\1```', text, re.MULTILINE | re.DOTALL
    ):
      line = text[: found.start()].count('\n') + 2
      yield f'{page}:{line}', inspect.cleandoc(found[2])


def commands(text: str) -> list[list[str]]:
  """Returns the commands of a shell text as words, without variables set."""
  text = re.sub(r'(^|\s)#.*$', r'\1', text, flags=re.MULTILINE)
  text = text.replace('\\\n', ' ')
  lexer = shlex.shlex(text, posix=True, punctuation_chars=';&|\n')
  lexer.whitespace, lexer.whitespace_split, lexer.commenters = ' \t', True, ''
  found: list[list[str]] = [[]]
  for word in lexer:
    if set(word) <= set(';&|\n'):
      found.append([])
    elif found[-1] or not re.match(r'\w+=', word):
      found[-1].append(word)
  return [words for words in found if words]


def ours(words: Sequence[str]) -> list[list[str]]:
  """Returns the commands of this code that a command starts, as module, flags.

  Launchers pass what follows `--`, `slurm.sbatch` or `--command=` on.
  """
  if words[0] in ('python', 'python3') and words[1] == '-m':
    # A redirection begins with `>` or `>>`.
    rest = list(itertools.takewhile(lambda w: not w.startswith('>'), words[2:]))
    return [rest] if rest[0].split('.')[0] in ('vit_jax', 'benchmarks') else []
  found = []
  for word in words:
    text = word.removeprefix('--command=')
    if text != word and 'python -m' in text:
      found += [own for inner in commands(text) for own in ours(inner)]
  for mark in ('--', 'launch/slurm.sbatch'):
    if mark in words:
      found.append(['vit_jax.main', *words[words.index(mark) + 1 :]])
  return found


class _Stop(Exception):
  """Ends a command after its checks."""


def dry_run(words: Sequence[str]) -> str:
  """Checks a command's module, flags, config and sweep.

  Args:
    words: the module and its arguments.

  Returns:
    What is wrong; '' for nothing. The process must not be used afterwards.
  """
  from absl import flags

  from vit_jax import config as config_lib
  from vit_jax.runtime import command_line
  from vit_jax.sweep import reading

  os.chdir(ROOT)
  sys.stdout = sys.stderr = printed = io.StringIO()
  complete = '...' not in words
  words = [word for word in words if word != '...']

  def check(main, *, required=(), arguments='', optional=False, **_):
    rest = command_line.parse(sys.argv)[1:]
    if rest and not arguments:
      sys.exit(f'error: {rest} belong to no flag.')
    if complete:
      if arguments and not rest and not optional:
        sys.exit(f'error: missing: {arguments}')
      command_line.require(*required)
    values = flags.FLAGS
    if 'config' in values and values.config is not None:
      config = values.config
      for stage in config.stages.values() if 'stages' in config else [config]:
        _validate(stage, needs_data=words[0] == 'vit_jax.main')
    if 'sweep' in values and values.sweep is not None:
      sweep = reading.load(values.sweep)
      if 'set' in values:
        sweep = reading.override(sweep, values.set)
      runs = [run for s in sweep.studies for run in s.candidates][:1]
      for run in runs:
        config_lib.validate(reading.read_config(run))
    raise _Stop

  command_line.run = check
  sys.argv = list(words)
  try:
    runpy.run_module(words[0], run_name='__main__', alter_sys=True)
  except _Stop:
    return ''
  except SystemExit as end:
    # --help and --version end with 0; absl's own --help with 1.
    shown = {'--help', '--version'} & {*words}
    if not shown or end.code not in (0, 1):
      return str(end.code)
    named = (
      '--version' in words or f'python -m {words[0]}' in printed.getvalue()
    )
    return '' if named else f'--help does not name python -m {words[0]}'
  except Exception as error:
    return f'{type(error).__name__}: {error}'
  return f'{words[0]} is no command.'


def dry_runs(commands: Sequence[Sequence[str]]) -> list[str]:
  """Calls `dry_run` for each command, in a fork of this process.

  Raises:
    ChildProcessError: a fork did not come to its end.
  """
  # Many commands import these, and each fork would do so anew.
  import tensorflow_datasets.public_api  # noqa: F401

  import vit_jax.data.sources
  import vit_jax.loaded
  import vit_jax.plan.search
  import vit_jax.predict
  import vit_jax.prepare_data.job
  import vit_jax.training.stages  # noqa: F401

  found = []
  for words in commands:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
      code = 1
      try:
        with open(writing, 'w') as file:
          file.write(dry_run(words))
        code = 0
      finally:
        os._exit(code)
    os.close(writing)
    with open(reading) as file:
      found.append(file.read())
    if os.waitpid(child, 0)[1]:
      raise ChildProcessError(f'The check of {words} died.')
  return found


def _validate(config: Any, *, needs_data: bool) -> None:
  from vit_jax import config as config_lib

  if not needs_data:  # Plans accept configs without data and weights.
    if config.data.dataset is None:
      config.data.dataset = 'digits'
    if config.init.checkpoint is None:
      config.init.checkpoint = ''
  config_lib.validate(config)


def wrong_names(text: str) -> list[str]:
  """Returns the uses of names and arguments of this code that are not there.

  Follows imports, the attributes of what is imported, and calls of these.
  """
  known: dict[str, Any] = {}
  wrong: list[str] = []

  def named(node: ast.AST) -> Any:
    """Returns what a dotted name stands for; None if it is not imported."""
    if isinstance(node, ast.Name):
      return known.get(node.id)
    owner = named(node.value) if isinstance(node, ast.Attribute) else None
    if owner is not None and not hasattr(owner, node.attr):
      wrong.append(f'{owner} has no {node.attr}')
      return None
    return getattr(owner, node.attr) if owner is not None else None

  for node in ast.walk(ast.parse(text)):
    if isinstance(node, ast.Import | ast.ImportFrom):
      try:
        exec(compile(ast.Module([node], []), '', 'exec'), known)
      except ImportError as error:
        name = (error.name or '').split('.')[0]
        if isinstance(error, ModuleNotFoundError) and name != 'vit_jax':
          continue  # An optional package.
        wrong.append(str(error))
    elif isinstance(node, ast.Attribute):
      named(node)
    elif isinstance(node, ast.Call) and callable(function := named(node.func)):
      if not getattr(function, '__module__', '').startswith('vit_jax'):
        continue
      arguments = [a for a in node.args if not isinstance(a, ast.Starred)]
      words = {word.arg: None for word in node.keywords if word.arg}
      try:
        inspect.signature(function).bind_partial(*arguments, **words)
      except TypeError as error:
        wrong.append(f'{function.__qualname__}: {error}')
  return wrong


if __name__ == '__main__':
  print(json.dumps(dry_runs(json.load(sys.stdin))))
