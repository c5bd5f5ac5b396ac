"""The commands and flags of gcloud and kubectl, from their references.

They were recorded on 2026-11-23 from `gcloud COMMAND --help` of SDK 528.0.0,
whose alpha and beta commands date from 2025-06-20, and of kubectl 1.32.4. They
are also at cloud.google.com/sdk/gcloud/reference and
kubernetes.io/docs/reference/kubectl. If the programs are installed,
test_real_tools.py checks the commands with them. The flags of the TPU commands
are complete; other long lists are not.

Each entry has the number of words besides flags (None: any number), and the
flags. A flag that ends in `=` takes a value, the others take none. A flag with
`!` is required. Flags with the same `(n)` exclude each other; if one of them
has `!`, exactly one of them is required.
"""

_LIST = 'filter= limit= page-size= sort-by='
# --location, --region and --zone of clusters exclude each other.
_LOCATION = 'location=(9) region=(9) zone=(9)'
_SSH = (
  'dry-run force-key-file-overwrite internal-ip plain ssh-key-file='
  ' strict-host-key-checking= worker= zone= ssh-key-expiration='
  ' ssh-key-expire-after='
)
_NODES = (
  'accelerator= async disk-size= disk-type= enable-autorepair'
  ' no-enable-autorepair enable-autoupgrade no-enable-autoupgrade'
  ' enable-autoscaling max-nodes= min-nodes= image-type= labels='
  ' machine-type= max-pods-per-node= metadata= node-labels= node-locations='
  ' node-taints= node-version= num-nodes= placement-policy= placement-type='
  ' preemptible reservation= reservation-affinity= scopes= service-account='
  ' spot tags= workload-metadata= enable-gvnic enable-image-streaming'
  ' location-policy= total-max-nodes= total-min-nodes='
  ' system-config-from-file='
)
# Flags of every gcloud command.
GCLOUD_WIDE = (
  'access-token-file= account= billing-project= configuration= flags-file='
  ' flatten= format= help impersonate-service-account= log-http project='
  ' quiet trace-token= user-output-enabled verbosity='
)

# Commands that act on a project and therefore need --project.
PROJECT_COMMANDS = ('alpha', 'beta quotas', 'builds', 'compute', 'container')
# Flags that an environment variable may replace.
IN_ENVIRONMENT = ('project', 'zone')
_QUEUED_RESOURCE = (
  'zone=! runtime-version=! accelerator-type=(1)! topology=(1) type='
  ' node-id=(2)! node-count=(2) node-prefix= async data-disk= description='
  ' guaranteed internal-ips labels= metadata= metadata-from-file= network='
  ' range= reserved scopes= service-account= shielded-secure-boot spot'
  ' subnetwork= tags= valid-after-duration= valid-after-time='
  ' valid-until-duration= valid-until-time= reservation-host-folder='
  ' reservation-host-organization= reservation-host-project='
)
_BINDING = 'member=! role=! condition= condition-from-file='

GCLOUD = {
  'compute tpus queued-resources create': (1, _QUEUED_RESOURCE),
  'alpha compute tpus queued-resources create': (
    1,
    f'{_QUEUED_RESOURCE} autocheckpoint-enabled best-effort boot-disk='
    ' max-run-duration= network-config= provisioning-model= reservation='
    ' workload-type=',
  ),
  'compute tpus queued-resources describe': (1, 'zone=!'),
  'compute tpus queued-resources list': (0, 'zone=! uri ' + _LIST),
  'compute tpus queued-resources delete': (1, 'zone=! async force'),
  'compute tpus tpu-vm ssh': (
    1,
    f'{_SSH} ssh-flag= command= output-directory=',
  ),
  'compute tpus tpu-vm scp': (2, f'{_SSH} compress recurse scp-flag='),
  'compute tpus tpu-vm list': (0, 'zone=! uri ' + _LIST),
  'compute tpus tpu-vm describe': (1, 'zone=!'),
  'compute tpus tpu-vm delete': (1, 'zone=! async'),
  'compute tpus locations list': (0, _LIST),
  'compute tpus accelerator-types list': (0, 'zone=! ' + _LIST),
  'beta quotas info list': (0, 'service=! folder= organization= uri ' + _LIST),
  'builds submit': (
    1,
    'no-source async no-cache default-buckets-behavior= dir= disk-size='
    ' gcs-log-dir= gcs-source-staging-dir= git-source-dir='
    ' git-source-revision= ignore-file= machine-type= polling-interval='
    ' region= revision= service-account= substitutions= suppress-logs'
    ' timeout= worker-pool= config=(3)! pack=(3) tag=(3)',
  ),
  'container clusters create': (
    1,
    f'{_LOCATION} {_NODES} addons= async cluster-version= cluster-dns='
    ' enable-autoprovisioning enable-dataplane-v2 enable-ip-alias'
    ' enable-multi-networking network= subnetwork= release-channel= tier='
    ' workload-pool=',
  ),
  'container clusters get-credentials': (
    1,
    f'{_LOCATION} dns-endpoint internal-ip',
  ),
  'container clusters update': (
    1,
    f'{_LOCATION} add-maintenance-exclusion-name='
    ' add-maintenance-exclusion-start= add-maintenance-exclusion-end='
    ' add-maintenance-exclusion-scope= remove-maintenance-exclusion= async',
  ),
  'container clusters describe': (1, _LOCATION),
  'container clusters delete': (1, f'{_LOCATION} async'),
  'container node-pools create': (
    1,
    f'{_LOCATION} {_NODES} cluster= enable-queued-provisioning flex-start'
    ' max-run-duration= tpu-topology= sandbox= node-group=',
  ),
  'container node-pools describe': (1, f'{_LOCATION} cluster='),
  'container node-pools delete': (1, f'{_LOCATION} cluster= async'),
  'compute resource-policies create workload-policy': (
    1,
    'type=! description= region= accelerator-topology=(4)'
    ' max-topology-distance=(4)',
  ),
  'compute resource-policies describe': (1, 'region='),
  'compute resource-policies delete': (1, 'region='),
  'container clusters list': (0, f'{_LOCATION} uri {_LIST}'),
  'compute networks create': (
    1,
    'bgp-routing-mode= description= mtu= subnet-mode= range=',
  ),
  'compute firewall-rules create': (
    1,
    'action=(5) allow=(5)! rules= description= direction= network= priority='
    ' source-ranges= source-tags= target-tags=',
  ),
  'beta quotas preferences create': (
    0,
    'service=! quota-id=! preferred-value=! dimensions= email= justification='
    ' preference-id= folder= organization=',
  ),
  # The following commands do not need --project.
  'auth login': (0, 'brief no-launch-browser update-adc'),
  'billing projects link': (1, 'billing-account=!'),
  'components install': (None, ''),
  'config get': (1, ''),
  'iam roles describe': (1, 'organization='),
  'iam service-accounts create': (1, 'description= display-name='),
  'logging read': (
    1,
    'freshness= limit= order= bucket= location= view= folder='
    ' organization= billing-account= resource-names=',
  ),
  'projects create': (1, 'name= folder= organization= labels= set-as-default'),
  'projects describe': (1, ''),
  'projects get-iam-policy': (1, _LIST),
  'projects add-iam-policy-binding': (1, _BINDING),
  'services enable': (None, 'async'),
  'storage buckets create': (
    None,
    'location= placement= default-storage-class= soft-delete-duration='
    ' uniform-bucket-level-access enable-hierarchical-namespace',
  ),
  'storage buckets describe': (1, 'raw additional-headers='),
  'storage buckets get-iam-policy': (1, ''),
  'storage buckets add-iam-policy-binding': (1, _BINDING),
  'storage rsync': (
    2,
    'recursive checksums-only continue-on-error exclude= dry-run no-clobber'
    ' delete-unmatched-destination-objects',
  ),
  'artifacts repositories create': (
    1,
    'repository-format=! location= description= labels= async',
  ),
  'artifacts repositories add-iam-policy-binding': (
    1,
    f'{_BINDING} location=',
  ),
}

KUBECTL = {
  'apply': (
    0,
    'filename=! server-side force-conflicts dry-run= namespace= prune'
    ' selector= validate= wait timeout=',
  ),
  'get jobset': (1, 'ignore-not-found output= namespace= selector= watch'),
  'rollout status': (1, 'namespace= timeout= watch='),
  'get pods': (0, 'output= namespace= selector= watch all-namespaces'),
  'logs': (
    0,
    'selector=! container= all-containers follow prefix tail= since='
    ' max-log-requests= previous timestamps namespace=',
  ),
  'delete jobset': (
    1,
    'namespace= wait cascade= grace-period= now timeout= ignore-not-found',
  ),
}

# The commands of xpk 1.16.0, 2026-08.
_XPK = 'cluster=! project= zone= dry-run quiet namespace='
XPK = {
  'cluster create': (
    0,
    f'{_XPK} tpu-type=(1)! device-type=(1) num-slices= spot(2) flex(2)'
    ' on-demand(2) reservation=(2) custom-cluster-arguments='
    ' custom-nodepool-arguments= default-pool-cpu-machine-type= gke-version=',
  ),
  'workload create': (
    0,
    f'{_XPK} workload=! command=! tpu-type=(1)! device-type=(1) num-slices='
    ' docker-image= base-docker-image= max-restarts= restart-on-exit-codes='
    ' termination-grace-period-seconds= env= env-file= priority= spot(2)'
    ' flex(2) on-demand(2) reservation=(2) output-manifest-file=',
  ),
}

# The flags of Slurm 22.05. The programs have no subcommands, and the words
# after the flags of sbatch belong to the job's script.
SBATCH = {
  '': (
    None,
    'job-name= requeue open-mode= signal= nodes= ntasks= ntasks-per-node='
    ' gpus-per-node= time= partition= account= mem= output= parsable test-only',
  ),
}
SCANCEL = {'': (1, 'signal= batch full')}
