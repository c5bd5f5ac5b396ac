"""Runs vit_jax on a Cloud TPU slice, from your own machine, with gcloud.

  zones    list the zones that offer a slice
  create   request a slice (a queued resource); show quota and cost first
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

from vit_jax.launch import flags as flags_lib
from vit_jax.launch import preflight, program, queued_resource, watch, workers
from vit_jax.launch import shell as shell_lib


def zones(shell, args, _) -> None:
  """Lists the zones that offer the slice to the project.

  The list does not take quota or the length of the queue into account.
  """
  wanted = flags_lib.accelerator(args).accelerator_type
  for zone in queued_resource.zones(shell, args.project):
    if wanted in queued_resource.offered(shell, zone, args.project):
      print(zone)


def create(shell, args, _) -> None:
  """Requests a slice with a queued resource, unless it is there already.

  First it checks that the zone offers the slice and, with --workdir, that the
  run may use its bucket. It also shows the project's quotas, the zone's other
  requests, and the costs of an hour. The slice exists once `status` says
  ACTIVE.
  """
  target, request = flags_lib.target(args), flags_lib.request(args)
  if queued_resource.check(shell, target, request):
    print(f'{target.name} is there already; nothing was requested.')
    return
  _preflight(shell, args, args.workdir)
  shell.say(queued_resource.cost(request.wanted, args.price_per_chip_hour))
  shell_lib.confirm('Create it?', yes=args.yes, dry_run=args.dry_run)
  with shell.making(target.delete):
    shell.run(queued_resource.create_command(target, request))


def setup(shell, args, _) -> None:
  """Ships the code to all workers and installs it there.

  The code is the commit, local changes, and new files that git does not ignore;
  new large files are refused. uv installs Python on the machines. The versions
  are those of --lock (default: launch/locks/tpu.txt) or exactly those that the
  run in --workdir recorded. Run `setup` again after you change the code; it
  refuses while a run is alive.
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
  """Starts a run on all workers; the run continues without your connection.

  The flags of vit_jax.main follow --. WORKDIR/launch/ records the code that
  `setup` shipped. Each worker restarts the program after exit codes 75 (stopped
  by SIGTERM, but the machine lives), 76 (a host was lost) and 77 (stuck) and
  after death by a signal, at most --restarts times in a row. It does not
  restart the program after other codes, such as 0 and 1. The program resumes
  from the work directory.
  """
  target = flags_lib.target(args)
  shell_lib.check_run(flags)
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
  workers.start(shell, target, flags, variables=flags_lib.variables(args))


def logs(shell, args, _) -> None:
  """Shows the end of the log, and with --follow also new lines.

  Ctrl-C ends only this command, not the run. Each process of a run logs on its
  own worker; process 0 logs the most.
  """
  workers.logs(
    shell,
    flags_lib.target(args),
    worker=args.worker,
    lines=args.lines,
    follow=args.follow,
  )


def status(shell, args, _) -> None:
  """Shows the request, the machines, and the run on each machine."""
  target = flags_lib.target(args)
  queue = queued_resource.states(shell, target).get(target.name)
  if not shell.dry_run:
    print(f'queued resource: {queue or "none of that name"}')
  node = queued_resource.node(shell, target)
  if not shell.dry_run:
    print(f'TPU VM: {" ".join(filter(None, node.values())) or "none yet"}')
    if node.get('state') != 'READY':
      return
  for worker in workers.status(shell, target):
    print(worker.text)


def stop(shell, args, _) -> None:
  """Ends the run on all workers with SIGTERM, and waits until it has saved.

  `run` with the same work directory resumes it. The slice remains and costs
  money.
  """
  workers.stop(shell, flags_lib.target(args))


def delete(shell, args, _) -> None:
  """Deletes the slice with everything on its disks. This ends the costs.

  It tries both the queued resource and the TPU VM. If one of them may be left,
  it says so and ends with exit code 1. A run that is alive ends without a save;
  `stop` it first.
  """
  target = flags_lib.target(args)
  shell_lib.confirm(
    f'Delete {target.name} in {target.zone}, and the data on its machines?',
    yes=args.yes,
    dry_run=args.dry_run,
  )
  queued_resource.delete(shell, target)


def watch_(shell, args, flags) -> None:
  """Starts a run and keeps it running until it has finished.

  It requests the slice if there is none, sets it up and starts the run. It
  replaces the slice when the slice is preempted, is suspended or fails, or when
  the run fails on it --replace_after times in a row. The run then resumes on
  the new slice with the same code and work directory, and with exactly the
  versions that it recorded there (with --new_versions: those of --lock).

  You may end `watch` and start it again at any time: it continues to watch a
  run that is alive, or starts this run with the present code. It must stay
  alive itself, in tmux or on a small machine; without it, a preemption ends the
  run. Exit code 0 means that the run has finished without an error.
  """
  workdir, lock = shell_lib.check_run(flags), flags_lib.lock(args)
  target, request = flags_lib.target(args), flags_lib.request(args)
  if target.name not in queued_resource.states(shell, target):
    _preflight(shell, args, workdir)
    shell.say(queued_resource.cost(request.wanted, args.price_per_chip_hour))
    shell_lib.confirm(
      'Create it now and again whenever it is lost?',
      yes=args.yes,
      dry_run=args.dry_run,
    )
  # The code is packed only once, so that later edits do not get into this run.
  with shell.scratch() as directory:
    job = watch.Job(
      target=target,
      request=request,
      archive=workers.pack(shell, directory),
      lock=lock,
      versions_workdir='' if args.new_versions else workdir,
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

# Runs one command. Its argument is the command line without the program's name.
main = functools.partial(
  program.run,
  doc=__doc__,
  commands=COMMANDS,
  groups=flags_lib.TPU_VM,
  takes_flags=('run', 'watch'),
)


if __name__ == '__main__':
  main(sys.argv[1:])
