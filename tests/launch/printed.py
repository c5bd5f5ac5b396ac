"""Collects the commands that launch/README.md and the dry runs show."""

import contextlib
import io
import pathlib
import re
import shlex

from vit_jax.launch import gke, tpu_vm

README = pathlib.Path(__file__).parents[2] / 'launch' / 'README.md'
PROGRAMS = ('gcloud', 'kubectl', 'xpk', 'sbatch', 'scancel')
FLAGS = '-- --config=configs/pretrain.py:ViT-B/16,imagenet2012'
FLAGS += ' --workdir=gs://bucket/runs/b16'
_RUN = f'--name=b16 --image=i:1 --accelerator=v6e-16 {{}} {FLAGS}'
_SLICE = '--name=b16 --accelerator=v4-32'
# All commands, with the flags that change the printed commands.
DRY_RUNS = {
  tpu_vm: [
    'zones --accelerator=v4-32',
    f'create {_SLICE} --spot --valid_until=6h --network=n --subnetwork=s'
    ' --service_account=a@b --internal_ip --workdir=gs://bucket/runs/b16',
    f'create {_SLICE} --reserved --workdir=gs://bucket/runs/b16',
    f'create {_SLICE} --flex_start --network=n',
    'setup --name=b16 --internal_ip',
    f'run --name=b16 {FLAGS}',
    'logs --name=b16 --follow',
    'status --name=b16',
    'stop --name=b16',
    'delete --name=b16',
    f'watch {_SLICE} --flex_start --delete_when_done {FLAGS}',
  ],
  gke: [
    'create_cluster --cluster=vit --network=n --subnetwork=s',
    'create_nodes --cluster=vit --accelerator=v6e-16 --spot',
    'create_nodes --cluster=vit --accelerator=v6e-16 --flex_start',
    'create_nodes --cluster=vit --accelerator=v6e-16 --reservation=r'
    ' --node_service_account=a@b',
    'create_nodes --cluster=vit --accelerator=tpu7x:2x2x2',
    'build --image=r/i:1',
    f'apply {_RUN.format("--host_network")}',
    f'apply {_RUN.format("--spot")}',
    'logs --name=b16 --follow',
    'status --name=b16',
    'delete --name=b16',
    'delete_nodes --cluster=vit --accelerator=tpu7x:2x2x2',
    'delete_cluster --cluster=vit',
  ],
}


def of_readme() -> list[str]:
  """Returns the commands in the README's shell blocks and in backquotes."""
  text = README.read_text().replace('$IMAGE', 'r/i:1')
  found = re.findall(r'`((?:gcloud|kubectl) \w[^`]* [^`]*)`', text)
  for block in re.findall(
    r'^ *```sh\n(.*?)^ *```', text, re.MULTILINE | re.DOTALL
  ):
    found += _commands(block)
  return sorted({shlex.join(shlex.split(line)) for line in found})


def of_dry_runs() -> list[str]:
  """Returns the commands that --dry_run prints, without their heredocs."""
  output = io.StringIO()
  with contextlib.redirect_stdout(output):
    for program, lines in DRY_RUNS.items():
      for line in lines:
        own, dashes, rest = line.partition(' -- ')
        program.main(shlex.split(f'{own} --dry_run{dashes}{rest}'))
  text = re.sub(r" <<'EOF'\n.*?\nEOF", '', output.getvalue(), flags=re.DOTALL)
  # What a program looks up first is in a comment.
  text = re.sub('^#   gcloud', 'gcloud', text, flags=re.MULTILINE)
  return sorted({shlex.join(shlex.split(line)) for line in _commands(text)})


def _commands(text: str) -> list[str]:
  """Returns the commands of PROGRAMS; a quotation may span several lines."""
  found, line = [], ''
  for part in text.replace('\\\n', ' ').splitlines():
    line = f'{line}\n{part}' if line else part
    try:
      words = shlex.split(line, comments=True)
    except ValueError:
      continue  # The quotation continues in the next line.
    if words and words[0] in PROGRAMS:
      found.append(shlex.join(words))
    line = ''
  return found
