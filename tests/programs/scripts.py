"""Small programs of the kinds that people run, each of which says what it met. Every line starts with its rank.

What a program prints must be the same under torchrun, under a warm fork and under a cold start. What differs in every
run (ports, run ids, folders, pids) is left out by the programs themselves or written as `<...>`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

#: Comes before each program: `say` prints one whole line with this worker's rank.
HEAD = """\
import os, sys
def say(*words):
    os.write(1, (" ".join(map(str, (os.environ["RANK"] + ":", *words))) + "\\n").encode())
"""

#: Has the ranks compare their values: the last to come says whether all differ.
COMPARE = """\
def all_differ(name, value):
    import fcntl
    with open(name, "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(str(value) + "\\n"); file.flush(); file.seek(0)
        values = file.read().split("\\n")[:-1]
        if len(values) == int(os.environ["WORLD_SIZE"]) * (int(os.environ["TORCHELASTIC_MAX_RESTARTS"]) + 1):
            os.write(1, f"{name} differ: {len(set(values)) == len(values)}\\n".encode())

def fail_together():
    # Fails in the first attempt, once all ranks have come so far.
    import time
    attempt, size = os.environ["TORCHELASTIC_RESTART_COUNT"], int(os.environ["WORLD_SIZE"])
    if attempt == "0":
        open("here-" + os.environ["RANK"], "w").close()
        while not all(os.path.exists(f"here-{rank}") for rank in range(size)):
            time.sleep(0.01)
        sys.exit(1)
"""


@dataclass(frozen=True)
class Program:
    """A program, the files beside it, and how it is launched."""

    code: str
    args: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)
    needs_torch: bool = False
    module: bool = False
    #: What a warm launch preloads: `auto` is what users have, a name forces a template.
    preload: str = "decimal"
    stdin: str = ""
    head: str = HEAD


PROGRAMS = {
    "environment": Program("""
for name in sorted(os.environ):
    if name.startswith(("TORCH", "MASTER", "RANK", "LOCAL", "GROUP", "ROLE", "WORLD", "OMP")):
        # Ours is an address rather than a name, and the store's port is held for the workers, not served by the agent.
        varies = ("MASTER_ADDR", "MASTER_PORT", "RUN_ID", "ERROR_FILE", "USE_AGENT_STORE")
        say(name, "<...>" if name.endswith(varies) else os.environ[name])
"""),
    "arguments": Program("say(sys.argv[1:])", args=("--lr", "0.1", "-x", "--flag=a b", "")),
    "arguments_after_two_dashes": Program("say(sys.argv[1:])", args=("--", "--x", "5")),
    "module": Program(
        "say(__name__, __package__, sys.argv[1:], os.path.basename(sys.argv[0]))",
        args=("--", "--y", "1"),
        module=True,
    ),
    "main_module": Program("""
import __main__
say(type(__builtins__).__name__, hasattr(__builtins__, "print"), __name__, __spec__, __doc__)
say(os.path.basename(__file__), os.path.basename(sys.argv[0]), __main__ is sys.modules["__main__"])
say(sys.path[0] == os.path.dirname(os.path.abspath(__file__)), sys.flags, sys.dont_write_bytecode)
say([os.path.basename(each) for each in sys.orig_argv[1:]])
say(sorted(name for name in globals() if name.startswith("__") and name != "__annotations__"))
"""),
    "process": Program("""
import signal, threading, resource, faulthandler
say(os.getcwd() == os.path.dirname(os.path.abspath(__file__)), os.nice(0))
watched = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGPIPE, signal.SIGCHLD)
say({s.name: str(signal.getsignal(s)) for s in watched})
say(signal.pthread_sigmask(signal.SIG_BLOCK, []), threading.current_thread() is threading.main_thread())
say(resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_CORE))
mask = os.umask(0); os.umask(mask); say(oct(mask), threading.active_count())
"""),
    "unfinished_line": Program(
        """
sys.stdout.write(os.environ["RANK"] + ": no newline at the end")
sys.stdout.flush()
os._exit(0)
""",
        flags=("--nproc-per-node=1",),
    ),
    "bytes_then_hard_exit": Program(
        """
sys.stdout.buffer.write(b"0: through the buffer\\n")
sys.stdout.buffer.flush()
sys.stderr.write("")
os._exit(0)
"""
        "",
        flags=("--nproc-per-node=1",),
    ),
    "parent_then_child": Program(
        """
import subprocess
print("0: compiling ...", end=" ", flush=True)
subprocess.run([sys.executable, "-c", "print('the child')"])
print("0: done")
""",
        flags=("--nproc-per-node=1",),
    ),
    "own_streams_in_order": Program(
        """
print("0: first")
sys.stdout.flush()
os.write(1, b"0: second\\n")
os.system("echo 0: third")
print("0: fourth")
""",
        flags=("--nproc-per-node=1",),
    ),
    "exit_hooks": Program("""
import atexit, threading, weakref
atexit.register(lambda: say("registered first"))
atexit.register(lambda: say("registered second"))
class Thing: pass
thing = Thing()
weakref.finalize(thing, lambda: say("finalized"))
threading.Thread(target=lambda: say("in a thread")).start()
"""),
    "shadowing": Program(
        "import statistics; say(statistics.WHOSE)",
        files={"statistics.py": "WHOSE = 'the script folder'"},
    ),
    "pickled_classes": Program("""
import inspect, pickle
class Config:
    def __init__(self): self.rate = 0.1
say(pickle.loads(pickle.dumps(Config())).rate, Config.__module__, len(inspect.getsource(Config).splitlines()))
"""),
    "spawned_children": Program(
        """
import multiprocessing
def work(queue): queue.put((__name__, multiprocessing.current_process().name))
if __name__ == "__main__":
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        queue = context.SimpleQueue()
        child = context.Process(target=work, args=(queue,))
        child.start(); said = queue.get(); child.join()
        say(method, said, child.exitcode)
"""
    ),
    "standard_input": Program("say(repr(sys.stdin.read()), sys.stdin.isatty())", flags=("--nproc-per-node=1",)),
    "restarts": Program(
        """
say("attempt", os.environ["TORCHELASTIC_RESTART_COUNT"], "of", os.environ["TORCHELASTIC_MAX_RESTARTS"])
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    sys.exit(3)
""",
        flags=("--nproc-per-node=1", "--max-restarts=1"),
    ),
    "random_numbers": Program(
        HEAD
        + COMPARE
        + """
import random, tempfile, uuid
import numpy
all_differ("random", random.random())
all_differ("numpy", numpy.random.rand())
all_differ("names", tempfile.mktemp())
all_differ("uuid", uuid.uuid4())
fail_together()
""",
        flags=("--max-restarts=1",),
        preload="numpy,random,tempfile,uuid",
        head="",
    ),
    "random_numbers_of_torch": Program(
        HEAD
        + COMPARE
        + """
import torch
from torch.utils.data import DataLoader
all_differ("randperm", torch.randperm(20).tolist())
all_differ("seed", torch.initial_seed())
all_differ("loader", [int(x) for x in DataLoader(range(40), shuffle=True)])
all_differ("dropout", torch.nn.functional.dropout(torch.ones(64)).tolist())
fail_together()
""",
        flags=("--max-restarts=1",),
        needs_torch=True,
        preload="torch",
        head="",
    ),
    "threads_set_before_torch": Program(
        """
def setup():
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
setup()
import torch
say(torch.get_num_threads())
""",
        needs_torch=True,
        preload="auto",
        flags=("--nproc-per-node=1",),
    ),
    "threads_set_by_a_local_module": Program(
        """
import settings
import torch
say(torch.get_num_threads())
""",
        files={"settings.py": "import os\nos.environ['OMP_NUM_THREADS'] = os.environ['MKL_NUM_THREADS'] = '1'"},
        needs_torch=True,
        preload="auto",
        flags=("--nproc-per-node=1",),
    ),
    "all_reduce_and_distributed_data_parallel": Program(
        """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
torch.manual_seed(0)
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
say(dist.get_world_size(), total.item())
data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, wanted in DataLoader(data, batch_size=4, sampler=DistributedSampler(data), num_workers=1):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(inputs), wanted).backward()
    optimizer.step()
say([round(w, 5) for w in model.module.weight[0].tolist()])
dist.destroy_process_group()
""",
        needs_torch=True,
        preload="torch,torch._dynamo",  # which the first optimizer imports
    ),
}
