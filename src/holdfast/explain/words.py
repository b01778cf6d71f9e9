"""What messages mean, by whose fault they are and by the part of the package that says them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.explain.collect import REFUSAL, WARNING, Found, Source

#: What kind of trouble a message is, by its exception; the nearest base that stands here counts.
BLAME = {
    "UsageError": "There is a mistake in the command, the settings or the call. Change what the message names.",
    "BadParameter": "A value on the command line cannot be read. Change what the message names.",
    "ClickException": "There is a mistake in the command. Change what the message names.",
    "CorruptShardError": "A saved state is incomplete or damaged, or the file is something else. Holdfast uses an "
    "older one, if there is one.",
    "RefusedPickleError": "The file holds a pickle that could run code, or torch did not write it. Holdfast does not "
    "read it.",
    "HandshakeError": "The two sides have different secrets or different versions of Holdfast. Compare "
    "`holdfast secret which` and `holdfast --version` on both.",
    "FrameError": "Bytes arrived that no Holdfast of this version sends. Only that connection is closed.",
    "PluginBrokenError": "A plugin of an installed package cannot be loaded. `holdfast plugins` shows its error.",
    "PeerError": "The other side (a process, a plugin, or a file that another program wrote) did not follow the "
    "protocol.",
    "RoundOverError": "The round ended while this step was under way. The step is undone and done again; only a "
    "program that catches it sees it.",
    "RendezvousClosedError": "The run with this id is over. Use another --rdzv-id.",
    "RendezvousStateError": "This node's settings do not fit the run that it asked to join. Compare the "
    "nodes' commands.",
    "StopTrainingError": "A step asked to leave the training; the other workers continue.",
    "JobFailedError": "The program that was launched failed. The report above the message has its error.",
    "UnavailableError": "Something that Holdfast needs is missing or cannot be reached. Trying again may help.",
    "RendezvousError": "The nodes did not agree on a round. `holdfast rounds ENDPOINT` shows what they wait for.",
    "SignalError": "A signal ended the agent and its workers.",
    "InternalError": "This is a bug in Holdfast. Please report it, with the traceback.",
    "HoldfastError": "Holdfast could not do this.",
    WARNING: "A warning: the run continues.",
    REFUSAL: "The coordinator did not admit this node. The node ends with this message.",
}


@dataclass(frozen=True, slots=True)
class Area:
    """A part of the package: the title of its messages, what to look at first, and the page that says more."""

    title: str
    first: str
    page: str = ""


#: The longest beginning of a module's path counts.
AREAS = {
    "agent": Area(
        "The agent",
        "The agent is the process on each node that starts workers and watches them. `holdfast events` "
        "shows what it did.",
        "ROUNDS.md",
    ),
    "calls": Area(
        "Functions as jobs",
        "`holdfast.submit` pickles a function and its arguments and runs them as a job; `job.logs()` has "
        "what it wrote.",
        "howto/submit-functions.md",
    ),
    "chaos": Area(
        "Faults on purpose", "`holdfast chaos`, on jobs of your own, and the campaign `python -m holdfast.chaos`."
    ),
    "checkpoint": Area(
        "Checkpoints",
        "`holdfast checkpoints list FOLDER` shows what was saved, and `holdfast checkpoints verify "
        "FOLDER` whether it is whole.",
        "howto/checkpoints.md",
    ),
    "cli": Area("The command line", "`holdfast COMMAND --help` shows what a command takes."),
    "compat": Area(
        "Programs written for torchrun, TorchX and torchelastic",
        "These messages come from names that other packages' programs use.",
        "COMPATIBILITY.md",
    ),
    "components": Area(
        "Components",
        "A component is a function that makes an app of its arguments. `holdfast builtins` lists them, and "
        "`holdfast run COMPONENT --help` shows what one takes.",
        "howto/components.md",
    ),
    "coordinator": Area(
        "Agreement between nodes",
        "The coordinator decides which nodes are in a round. `holdfast rounds ENDPOINT` shows what it knows.",
        "ROUNDS.md",
    ),
    "events": Area(
        "Runs and their event logs", "`holdfast runs` lists the runs that are known.", "howto/observe-a-run.md"
    ),
    "failures": Area("Reports of failures", "How a worker failed is read from its error file and its exit code."),
    "forecast": Area("Forecasts", "`holdfast forecast --help` shows what a plan is made of.", "FORECAST.md"),
    "health": Area("The health port", "`--health-port` serves liveness and metrics.", "howto/health-server.md"),
    "home.py": Area("Folders of this user", "HOLDFAST_HOME names the folder for runs and jobs.", "VARIABLES.md"),
    "integrations": Area(
        "Training loops of frameworks",
        "`survive(trainer)`, the `Accelerator` and the `HoldfastStrategy` keep workers running when one of them dies.",
        "howto/frameworks.md",
    ),
    "launcher": Area(
        "Launching",
        "`holdfast launch --help` shows every flag; they stand before the script.",
        "OPTIONS.md",
    ),
    "metrics": Area("Metrics", "`--metrics` chooses where values go.", "howto/metric-handler.md"),
    "outbox.py": Area("Metrics", "`--metrics` chooses where values go.", "howto/metric-handler.md"),
    "page": Area("The live page", "`holdfast page --help` shows its options.", "howto/observe-a-run.md"),
    "plugins.py": Area("Plugins", "`holdfast plugins` lists what installed packages add, and what is broken."),
    "private.py": Area(
        "Folders of this user",
        "Holdfast uses no folder below /tmp or /dev/shm that another user may have made. HOLDFAST_HOME names another.",
        "VARIABLES.md",
    ),
    "quantities.py": Area("The command line", "`holdfast COMMAND --help` shows what a command takes."),
    "rendezvous": Area(
        "How nodes meet",
        "All nodes need the same --rdzv-endpoint and --rdzv-id. `holdfast rounds ENDPOINT` shows which have come.",
        "TROUBLESHOOTING.md#nodes-do-not-meet",
    ),
    "runner": Area(
        "Jobs and settings",
        "`holdfast list` shows the jobs; `holdfast configure --show` says which settings are in force, "
        "and from which file.",
        "howto/local-jobs.md",
    ),
    "schedulers": Area("Schedulers", "`holdfast runopts` shows the options of each scheduler.", "SCHEDULERS.md"),
    "schedulers/local": Area(
        "Jobs on this machine",
        "A local job is a folder with a supervisor; `holdfast log --path JOB` shows it.",
        "howto/local-jobs.md",
    ),
    "schedulers/containers": Area(
        "Jobs on Docker and Podman",
        "`holdfast run -s docker --dryrun` prints what is created; `docker ps -a` shows the containers.",
        "SCHEDULERS.md",
    ),
    "schedulers/kubernetes": Area(
        "Jobs on Kubernetes",
        "`holdfast run -s kubernetes --dryrun` prints the objects; `kubectl get pods` shows what became of them.",
        "SCHEDULERS.md",
    ),
    "schedulers/slurm": Area(
        "Jobs on Slurm",
        "`holdfast run -s slurm --dryrun` prints the batch script; `squeue` and `sacct` show what Slurm made of it.",
        "SCHEDULERS.md",
    ),
    "schedulers/ssh": Area(
        "Jobs over SSH",
        "`ssh HOST python3 --version` must work without a password on every host.",
        "SCHEDULERS.md",
    ),
    "sim": Area("The simulator", "`python -m holdfast.sim`, for people who change how nodes agree."),
    "sinks.py": Area("Metrics", "`--metrics` chooses where values go.", "howto/metric-handler.md"),
    "specs": Area("Apps, roles and resources", "`holdfast resources` lists machines by name.", "howto/components.md"),
    "store": Area("The shared store", "Keys live in the coordinator's memory and go with its run."),
    "testing": Area("Contract suites", "For authors of plugins.", "howto/scheduler-plugin.md"),
    "text.py": Area("The command line", "`holdfast COMMAND --help` shows what a command takes."),
    "timer": Area("Timers and hangs", "`--hang` finds workers that make no progress.", "howto/timers-and-hangs.md"),
    "torch": Area(
        "Training in process with torch",
        "`holdfast.torch.elastic` keeps workers running when one of them dies.",
        "howto/train-in-process.md",
    ),
    "tracker": Area("Trackers", "`holdfast tracker` shows what jobs have recorded.", "howto/tracker.md"),
    "train": Area(
        "Training in process",
        "`holdfast.elastic` keeps workers running when one of them dies; a step happens on all workers or on none.",
        "howto/train-in-process.md",
    ),
    "view": Area(
        "Runs and their event logs", "`holdfast runs` lists the runs that are known.", "howto/observe-a-run.md"
    ),
    "wire": Area(
        "Connections",
        "Check that the address can be reached from this node and that both sides have the same secret.",
        "SECURITY.md",
    ),
    "workers": Area(
        "Worker processes",
        "`--tee 3 --log-dir logs` keeps the output of every worker; `--start-method spawn` does without preloading.",
        "TROUBLESHOOTING.md#workers-fail",
    ),
    "workspace": Area(
        "Code that is shipped with a job", "A job's workspace is copied when it is submitted.", "howto/local-jobs.md"
    ),
}
#: Parts that say what others say, too.
_LESS_COMMON = ("calls/", "compat/", "testing/")
OTHER = Area("Other messages", "`holdfast --help` lists the commands.")


def area_of(module: str) -> Area:
    """Return the part of the package that a module belongs to."""
    fitting = [name for name in AREAS if module == name or module.startswith(f"{name}/")]
    return AREAS[max(fitting, key=len)] if fitting else OTHER


def fault_of(source: Source, kind: str) -> str:
    """Name the fault that an exception, a warning or a refusal stands for, a key of `BLAME`."""
    return next((each for each in source.roots(kind) if each in BLAME), "HoldfastError")


def blame_of(source: Source, kind: str) -> str:
    """Say what kind of trouble an exception, a warning or a refusal is."""
    return BLAME[fault_of(source, kind)]


def by_code(found: Iterable[Found]) -> dict[str, list[Found]]:
    """Put messages with the same words together; those that most people meet come first."""
    result: dict[str, list[Found]] = {}
    for one in sorted(found, key=lambda each: each.module.startswith(_LESS_COMMON)):
        result.setdefault(one.code, []).append(one)
    return result
