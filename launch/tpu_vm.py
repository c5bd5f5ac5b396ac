"""Runs vit_jax on a Cloud TPU slice, from your own machine, with gcloud.

  zones    which zones offer a slice
  create   ask for one (a queued resource), after a look at quota and cost
  setup    ship the code here to all its machines and install it
  run      start a run on all of them; it goes on without you
  logs     show what it says
  status   the request, the machines, and the run on each of them
  stop     end the run; it saves first
  delete   give the slice back; until then it costs money
  watch    all of it: create, setup, run, and again after each preemption

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

--dry_run prints each command, ready to be pasted, and runs nothing.
COMMAND --help explains one command; launch/README.md explains the rest.
"""

import functools
import pathlib
import sys

if not __package__:  # As `python launch/tpu_vm.py`, with nothing installed.
  sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from vit_jax.launch import flags as flags_lib
from vit_jax.launch import preflight, program, queued_resource, watch, workers
from vit_jax.launch import shell as shell_lib


def zones(shell, args, _) -> None:
  """Lists the zones that offer the slice to the project.

  That a zone offers it says nothing of quota, or of how long the queue is.
  """
  wanted = flags_lib.accelerator(args).accelerator_type
  for zone in queued_resource.zones(shell, args.project):
    if wanted in queued_resource.offered(shell, zone, args.project):
      print(zone)


def create(shell, args, _) -> None:
  """Asks for a slice with a queued resource, and returns at once.

  Before that it checks that the zone offers the slice and, with --workdir, that
  the run may use its bucket, and shows the project's quotas, the zone's other
  requests, and what an hour costs. It is there once `status` says ACTIVE.
  """
  target, request = flags_lib.target(args), flags_lib.request(args)
  queued_resource.check(shell, target, request)
  _preflight(shell, args, args.workdir)
  shell.say(queued_resource.cost(request.wanted, args.price_per_chip_hour))
  shell_lib.confirm('Create it?', yes=args.yes, dry_run=args.dry_run)
  shell.run(queued_resource.create_command(target, request))


def setup(shell, args, _) -> None:
  """Ships the code to all workers and installs it there.

  Shipped are the commit, local changes, and new files that git does not
  ignore; new large files are refused. The machines need no particular Python:
  uv brings one. Installed are the versions of launch/locks/tpu.txt unless
  --lock says otherwise, or exactly those of the run in --workdir. Run it again
  after changing the code; while a run is alive it refuses.
  """
  lock, workdir = flags_lib.lock(args), args.workdir
  if workdir:
    shell_lib.check_workdir(workdir)
  with shell.scratch() as directory:
    archive = workers.pack(shell, directory)
    workers.set_up(
      shell, flags_lib.target(args), archive, lock=lock, workdir=workdir
    )


def run(shell, args, flags) -> None:
  """Starts a run on all workers; it does not need you or the connection.

  After -- come the flags of vit_jax.main. The code that set-up shipped is
  noted in WORKDIR/launch/. Each worker starts the program again, at most
  --restarts times in a row, when its exit code is 75 (preempted, yet the
  machine lives), 76 (a host was lost) or 77 (stuck) or a signal killed it;
  never after 0 or 1. It resumes from the work directory.
  """
  workers.start(
    shell, flags_lib.target(args), flags, variables=flags_lib.variables(args)
  )


def logs(shell, args, _) -> None:
  """Shows the end of the log; --follow goes on. Ctrl-C ends the looking only.

  All processes of a run log on their own worker; the first, 0, says most.
  """
  workers.logs(
    shell,
    flags_lib.target(args),
    worker=args.worker,
    lines=args.lines,
    follow=args.follow,
  )


def status(shell, args, _) -> None:
  """Shows the request, the machines, and the run on each of them."""
  target = flags_lib.target(args)
  queue = queued_resource.states(shell, target).get(target.name)
  if not shell.dry_run:
    print(f'queued resource: {queue or "none of that name"}')
    if queue is None:
      return
  node = queued_resource.node(shell, target)
  if not shell.dry_run:
    print(f'TPU VM: {" ".join(filter(None, node.values())) or "none yet"}')
    if node.get('state') != 'READY':
      return
  for worker in workers.status(shell, target):
    print(worker.text)


def stop(shell, args, _) -> None:
  """Ends the run on all workers with SIGTERM, and waits until it has saved.

  `run` with the same work directory goes on from there. The slice stays, and
  costs money.
  """
  workers.stop(shell, flags_lib.target(args))


def delete(shell, args, _) -> None:
  """Gives the slice back, with everything on its disks. Ends the costs.

  A run that is alive is ended without a save; `stop` it first.
  """
  target = flags_lib.target(args)
  shell_lib.confirm(
    f'Delete {target.name} in {target.zone}, and what its machines hold?',
    yes=args.yes,
    dry_run=args.dry_run,
  )
  shell.run(queued_resource.delete_command(target))


def watch_(shell, args, flags) -> None:
  """Brings a run up and keeps it up until it is over.

  Asks for the slice if there is none, sets it up and starts the run when it is
  there; when it is preempted, suspended or fails, or the run fails on it
  --replace_after times in a row, deletes it, asks for a new one, and goes on
  with the same code and work directory, and with exactly the versions that the
  run has recorded there, as long as they can be had; with --new_versions with
  those of --lock. It may be ended and started again at any time: a run that is
  alive it takes up; on a slice without one it starts this one, with the code as
  it is now. It must stay alive itself, in tmux or on a small machine; without
  it a run just ends at the preemption. Exit code 0: the run is over and all is
  well.
  """
  workdir, lock = shell_lib.check_run(flags), flags_lib.lock(args)
  target, request = flags_lib.target(args), flags_lib.request(args)
  if target.name not in queued_resource.states(shell, target):
    _preflight(shell, args, workdir)
    shell.say(queued_resource.cost(request.wanted, args.price_per_chip_hour))
    shell_lib.confirm(
      'Create it, each time it is lost?', yes=args.yes, dry_run=args.dry_run
    )
  # Packed once: what is edited meanwhile must not get into this run.
  with shell.scratch() as directory:
    job = watch.Job(
      target=target,
      request=request,
      archive=workers.pack(shell, directory),
      lock=lock,
      recorded='' if args.new_versions else workdir,
      flags=flags,
      variables=flags_lib.variables(args),
      replace_after=args.replace_after,
      replacements=args.replacements,
    )
    watch.watch(
      shell, job, poll=args.poll, delete_when_done=args.delete_when_done
    )


def _preflight(shell, args, workdir) -> None:
  def account():
    if args.service_account:
      return f'serviceAccount:{args.service_account}'
    return preflight.compute_account(shell, args.project)

  if not args.no_preflight:
    preflight.check(shell, workdir, args.project, account)


COMMANDS = {
  'zones': (zones, ['accelerator']),
  'create': (
    create,
    ['name', 'accelerator', 'request', 'create', 'preflight', 'yes'],
  ),
  'setup': (setup, ['name', 'lock', 'setup']),
  'run': (run, ['name', 'run']),
  'logs': (logs, ['name', 'logs']),
  'status': (status, ['name']),
  'stop': (stop, ['name']),
  'delete': (delete, ['name', 'yes']),
  'watch': (
    watch_,
    ['name', 'accelerator', 'request', 'preflight', 'yes', 'lock', 'run']
    + ['watch'],
  ),
}

# Runs one command: takes the words of the command line without the program.
main = functools.partial(
  program.run,
  doc=__doc__,
  commands=COMMANDS,
  groups=flags_lib.TPU_VM,
  takes_flags=('run', 'watch'),
)


if __name__ == '__main__':
  main(sys.argv[1:])
