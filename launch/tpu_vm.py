"""Runs vit_jax on a Cloud TPU slice, from your own machine, with gcloud.

  create   request a slice (a queued resource)
  setup    ship the local code to all machines of the slice and install it
  run      start a run on all machines; it continues without you
  logs     show the logs of the run
  status   show the request, the machines, and the run on each machine
  stop     end the run; it saves first
  delete   delete the slice; until then it costs money
  watch    do create, setup and run, and again after each preemption

From nothing to a run, in the repository's root:

  export CLOUDSDK_CORE_PROJECT=my-project CLOUDSDK_COMPUTE_ZONE=us-central2-b
  python launch/tpu_vm.py create --name=b16 --accelerator=v4-32 --spot
  python launch/tpu_vm.py setup --name=b16
  python launch/tpu_vm.py run --name=b16 -- \\
      --config=configs/pretrain.py:ViT-B/16,imagenet2012 \\
      --config.data.data_dir=gs://my-bucket/tfds \\
      --workdir=gs://my-bucket/runs/b16
  python launch/tpu_vm.py logs --name=b16 --follow
  python launch/tpu_vm.py delete --name=b16

--dry_run prints each command, ready to paste into a shell, and runs nothing.
COMMAND --help explains one command; launch/README.md explains the rest.
"""

import functools
import pathlib
import sys

# `python launch/tpu_vm.py` must work without an installed package.
if not __package__:
  sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from vit_jax import topology
from vit_jax.launch import flags as flags_lib
from vit_jax.launch import slices, watch, workers


def create(shell, args, _) -> None:
  """Requests a slice with a queued resource.

  With --workdir, it first checks that its bucket exists. The slice exists once
  `status` says ACTIVE. Without --spot, --reserved or
  --provisioning-model=flex-start, it is on demand. These,
  --service-account=EMAIL, --network=NAME and all other flags that this command
  does not know are those of gcloud compute tpus queued-resources create.
  """
  target, wanted = _target(args), topology.parse(args.accelerator)
  command = slices.create_command(target, wanted, args)
  _rent(shell, args, args.workdir, wanted, 'Create it?')
  shell.run(command)


def setup(shell, args, _) -> None:
  """Ships the code to all workers and installs it there.

  The code is the commit, local changes, and new files that git does not ignore;
  new large files are refused. uv installs Python on the machines. The versions
  are those of --lock (default: launch/locks/tpu.txt) or exactly those that the
  run in --workdir recorded. Run `setup` again after you change the code; it
  refuses while a run is alive.
  """
  with shell.scratch() as directory:
    archive = workers.pack(shell, directory)
    workers.set_up(shell, _target(args), archive, args.lock, args.workdir)


def run(shell, args, flags) -> None:
  """Starts a run on all workers; the run continues without your connection.

  The flags of vit_jax.main follow --. WORKDIR/launch/ records the code that
  `setup` shipped. Each worker restarts the program after exit codes 75 (stopped
  by SIGTERM, but the machine lives), 76 (a host was lost), 77 (stuck) and 78 (a
  device computed wrongly) and after death by a signal, at most 20 times in a
  row (--env=RESTARTS=N); an attempt of at least two hours resets the count,
  unless it got stuck. It does not restart the program after other codes, such
  as 0 and 1. The program resumes from the work directory.
  """
  target = _target(args)
  flags_lib.check_run(flags)
  # Machines that start in different launches would never find each other.
  unready = [
    f'{worker.name} ({"a run is alive" if worker.alive else "not set up"})'
    for worker in workers.status(shell, target)
    if worker.alive or worker.state == 'new'
  ]
  if unready:
    raise ValueError(
      f'nothing was started, because of {", ".join(unready)}. Use stop to end a'
      ' run on all machines, and setup to set all of them up.'
    )
  workers.start(shell, target, flags, args.env)


def logs(shell, args, _) -> None:
  """Shows the end of the log, and with --follow also new lines.

  Ctrl-C ends only this command, not the run. Each process of a run logs on its
  own worker; process 0 logs the most.
  """
  follow = 'yes' if args.follow else 'no'
  line = f'FOLLOW={follow} bash {workers.SCRIPTS}/logs.sh {args.lines}'
  shell.run(workers.ssh(_target(args), line, worker=args.worker))


def status(shell, args, _) -> None:
  """Shows the request, the machines, and the run on each machine."""
  target = _target(args)
  queue, node, health = target.states(shell)
  if not shell.dry_run:
    print(f'queued resource: {queue or "none of that name"}')
    print(f'TPU VM: {f"{node} {health}".strip() or "none yet"}')
    if node != 'READY':
      return
  for worker in workers.status(shell, target):
    print(worker.text)


def stop(shell, args, _) -> None:
  """Ends the run on all workers with SIGTERM, and waits until it has saved.

  `run` with the same work directory resumes it. The slice remains and costs
  money.
  """
  workers.stop(shell, _target(args))


def delete(shell, args, _) -> None:
  """Deletes the slice with everything on its disks. This ends the costs.

  A run that is alive ends without a save; `stop` it first.
  """
  target = _target(args)
  shell.confirm(
    f'Delete {target.name} in {target.zone}, and the data on its machines?',
    yes=args.yes,
  )
  target.delete(shell)


def watch_(shell, args, flags) -> None:
  """Starts a run and keeps it running until it has finished.

  It requests the slice if there is none, sets it up and starts the run. It
  replaces the slice when the slice is preempted, is suspended or fails. The run
  then resumes on the new slice with the same code and work directory, and with
  exactly the versions that it recorded there (with --new_versions: those of
  --lock).

  You may end `watch` and start it again at any time: it continues to watch a
  run that is alive, or starts this run with the present code. It must stay
  alive itself, in tmux or on a small machine; without it, a preemption ends the
  run. Exit code 0 means that the run has finished without an error. It passes
  unknown flags on to gcloud, as `create` does.
  """
  workdir = flags_lib.check_run(flags)
  target, wanted = _target(args), topology.parse(args.accelerator)
  command = slices.create_command(target, wanted, args)
  if target.states(shell)[0] is None:
    question = 'Create it now and again whenever it is lost?'
    _rent(shell, args, workdir, wanted, question)

  def act(action):
    if action in ('delete', 'recreate'):
      target.delete(shell)
    if action in ('create', 'recreate'):
      shell.run(command)
    if action in ('set_up', 'restart'):
      # All workers start together, even if only one of them is new.
      workers.stop(shell, target, restart=True)
      if action == 'set_up':
        versions = '' if args.new_versions else workdir
        workers.set_up(shell, target, archive, args.lock, versions)
      workers.start(shell, target, flags, args.env)

  # The code is packed only once, so that later edits do not get into this run.
  with shell.scratch() as directory:
    archive = workers.pack(shell, directory)
    watch.watch(
      *(shell, target, wanted.hosts, act),
      poll=args.poll,
      delete_when_done=args.delete_when_done,
    )


def _target(args) -> slices.Target:
  return slices.Target(args.name, args.zone, args.project, args.internal_ip)


def _rent(shell, args, workdir, wanted, question) -> None:
  """Checks the bucket and asks before a slice is requested."""
  if not args.no_preflight:
    flags_lib.check_bucket(shell, workdir)
  shell.say(slices.cost(wanted))
  shell.confirm(question, yes=args.yes)


_SLICE = 'name zone project internal_ip'
_REQUEST = 'accelerator no_preflight yes'
COMMANDS = {
  'create': (create, f'{_SLICE} {_REQUEST} workdir'),
  'setup': (setup, f'{_SLICE} lock workdir'),
  'run': (run, f'{_SLICE} env'),
  'logs': (logs, f'{_SLICE} worker lines follow'),
  'status': (status, _SLICE),
  'stop': (stop, _SLICE),
  'delete': (delete, f'{_SLICE} yes'),
  'watch': (
    watch_,
    f'{_SLICE} {_REQUEST} env lock poll new_versions delete_when_done',
  ),
}

# Runs one command. Its argument is the command line without the program's name.
main = functools.partial(
  flags_lib.run,
  doc=__doc__,
  commands=COMMANDS,
  takes=('run', 'watch'),
  passes=('create', 'watch'),
)


if __name__ == '__main__':
  main(sys.argv[1:])
