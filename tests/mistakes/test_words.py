"""Words on the command line that mean nothing, or not that."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mistakes.conftest import Invoke, answered

COMMANDS = [
    (["lanch", "ok.py"], "there is no command 'lanch'; did you mean: holdfast launch?"),
    (["frobnicate"], "there is no command 'frobnicate'; `holdfast --help` lists the commands"),
    (["train.py"], "'train.py' is not a command; to run a script write: holdfast launch train.py"),
    (["--nproc-per-node", "2", "ok.py"], "options come behind the command, as in:"),
    (
        ["launch", "--nproc-per-mode", "2", "ok.py"],
        "there is no option --nproc-per-mode; did you mean --nproc-per-node",
    ),
    (["launch", "--rdzv", "2", "ok.py"], "--rdzv could be --rdzv-endpoint, --rdzv-id, --rdzv-backend or --rdzv-conf;"),
    (["launch", "--frobnicate"], "there is no option --frobnicate; `"),
    (["launch", "--max-restarts=-1", "ok.py"], "invalid value for '--max-restarts': -1 is not in the range"),
    (["launch", "--monitor-interval=often", "ok.py"], "'often' is not a valid float"),
    (["launch", "--nproc-per-node"], "option '--nproc-per-node' requires an argument"),
    (["status"], "there is no job yet; `holdfast run` submits one"),
    (["checkpoints", "list", "folder"], "unexpected extra argument (folder); see `"),
    (["completion", "tcsh"], "'tcsh' is not one of 'bash', 'zsh', 'fish'"),
    (["completion"], "missing argument '{bash|zsh|fish}'. Choose from: bash, zsh, fish; see `"),
]

LAUNCHES = [
    ([], "name the script to run, as in: holdfast launch --nproc-per-node 2 train.py"),
    ([""], "name the script to run, as in: holdfast launch --nproc-per-node 2 train.py"),
    (["trian.py"], "there is no script 'trian.py' here; use -m for a module or --no-python for a program"),
    (["a/trian.py"], "there is no script 'a/trian.py' here; check the path"),
    (["folder"], "'folder' is a folder without a __main__.py: name the script in it"),
    (["-"], "'-' can be read only once, and every worker reads its script: save it to a file first"),
    (["/dev/null"], "'/dev/null' can be read only once"),
    (["--nnodes", "4:2", "ok.py"], "--nnodes '4:2' must have 1 <= MIN <= MAX, as in 4 or 2:4"),
    (["--nnodes", "x", "ok.py"], "--nnodes 'x' must be a number or MIN:MAX, as in 4 or 2:4"),
    (["--nnodes", "0", "ok.py"], "--nnodes '0' must have 1 <= MIN <= MAX"),
    (["--nproc-per-node", "0", "ok.py"], "'0' is neither a number above 0 nor one of auto, cpu, gpu"),
    (["--nproc-per-node=-1", "ok.py"], "'-1' is neither a number above 0 nor one of auto, cpu, gpu"),
    (["--nproc-per-node", "1000000", "ok.py"], "'1000000' is more than 4096, the most that one node can have"),
    (
        ["--rdzv-backend", "zookeeper", "ok.py"],
        "the rendezvous backend 'zookeeper' is not registered; there are: c10d,",
    ),
    (["--rdzv-conf", "timeout", "ok.py"], "--rdzv-conf 'timeout' must be key=value; separate several with commas"),
    (["--rdzv-conf", "timeout=soon", "ok.py"], "'timeout': 'soon' is not a length of time: write seconds, or 300ms"),
    (["--rdzv-endpoint", "host:port", "ok.py"], "'host:port' is not an endpoint: the port must be a number"),
    (["--rdzv-endpoint", "host:99999", "ok.py"], "'host:99999' is not an endpoint: the port must be a number"),
    (["--rdzv-endpoint", "http://host", "ok.py"], "'http://host' is not an endpoint"),
    (["--redirects", "7", "ok.py"], "'7' names no streams: write 0 (none), 1 (stdout), 2 (stderr), 3 (both)"),
    (["--signals-to-handle", "SIGFOO", "ok.py"], "'SIGFOO' is not a signal; write names such as SIGTERM,SIGUSR1"),
    (["--hang", "soon", "ok.py"], "--hang 'soon' must be off, auto, or a time such as 90s"),
    (["--metrics", "nosuch", "ok.py"], "there is no metrics sink 'nosuch'; there are: console,"),
    (["--event-log-handler", "nosuch", "ok.py"], "there is no event handler 'nosuch'; there are: console,"),
    (["--health-port", "high", "ok.py"], "--health-port 'high' must be a port from 0 to 65535 or HOST:PORT"),
    (["--log-dir", "ok.py", "ok.py"], "the log folder ok.py is a file; name a folder that exists or can be made"),
    (
        ["--secret-file", "nosuch", "ok.py"],
        "cannot read the secret file nosuch: No such file or directory; one is made",
    ),
    (["--start-method", "x", "ok.py"], "'x' is not one of 'spawn', 'fork', 'forkserver'"),
    (["--shutdown-timeout=-1", "ok.py"], "-1.0 is not in the range x>=0"),
    (["--restart-backoff", "a:b", "ok.py"], "--restart-backoff: 'a' is not a length of time: write seconds, or 300ms"),
    (["--exit-barrier-timeout", "x", "ok.py"], "--exit-barrier-timeout: 'x' is not a length of time"),
    (["--log-size-limit", "big", "ok.py"], "--log-size-limit: 'big' is not a size: write bytes, or 64K, 10M, 2G"),
    (["--node-rank", "5", "--nnodes", "2", "ok.py"], "--node-rank 5 does not fit 2 nodes: use 0 to 1"),
    (["--preload", "torch", "--no-python", "true"], "--preload needs a Python script or module"),
    (["--numa-binding", "x", "ok.py"], "'x' is not one of 'node', 'socket', 'exclusive', 'core-complex'"),
    (["--no-python", "./nosuch"], "cannot start './nosuch': No such file or directory"),
]

RUNS = [
    ([], "say what to run: `holdfast builtins` lists components, and a script will do too"),
    ([""], "say what to run: `holdfast builtins` lists components, and a script will do too"),
    (["utils.ehco"], "there is no component 'utils.ehco'; did you mean utils.echo?"),
    (["nosuch.thing"], "there is no component 'nosuch.thing'; `holdfast builtins` lists them"),
    (["trian.py"], "there is no script 'trian.py' here; check the path"),
    (["-j", "2y4", "ok.py"], "-j '2y4' must be [[MIN:]NODES x]WORKERS, as in 4, 2x4 or 1:4x8"),
    (["-j", "0x1", "ok.py"], "-j '0x1' must have 1 <= MIN <= NODES and at least one worker"),
    (
        ["-s", "slrum", "utils.echo"],
        "there is no scheduler 'slrum'; did you mean 'slurm'? installed are: ",
    ),
    (["-cfg", "log_dir", "utils.echo"], "'log_dir' is not of the form key=value"),
    (["-cfg", "prepend_cwd=maybe", "utils.echo"], "'prepend_cwd' must be bool, and 'maybe' is neither true nor false"),
    (["--env", "A", "utils.echo"], "--env takes NAME=VALUE, and 'A' is not of that form"),
    (["--workspace", "nosuch", "ok.py"], "the workspace 'nosuch' does not exist"),
    (["utils.echo", "--mgs", "hi"], "utils.echo has no flag --mgs; did you mean --msg?"),
    (["utils.echo", "hi"], "utils.echo takes no argument 'hi'; every value needs a flag, as in --name value"),
    (["dist.ddp", "-j", "1x1"], "give either --script, a file to run, or -m, a module to run"),
    (["dist.ddp", "-j", "1", "--cpu", "x", "--script", "ok.py"], "--cpu 'x' must be int"),
    (
        ["dist.ddp", "-j", "1", "-h", "nosuch", "--script", "ok.py"],
        "there is no named resource 'nosuch'; `holdfast res",
    ),
    (["broken.py:f"], "the file of 'broken.py:f' cannot be loaded: SyntaxError: invalid syntax (broken.py, line 1)"),
    (["nosuch.py:f"], "there is no file 'nosuch.py' for the component 'nosuch.py:f'"),
]

QUESTIONS = [
    (["status", "nosuch"], "there is no job 'nosuch'; `holdfast list` shows none"),
    (["log", "nosuch"], "there is no job 'nosuch'; `holdfast list` shows none"),
    (["cancel", "nosuch"], "there is no job 'nosuch'; `holdfast list` shows none"),
    (["status", "local://x"], "'local://x' is not the handle of a job, which looks like local://holdfast/"),
    (["status", "nosuch://a/b"], "there is no scheduler 'nosuch'; installed are: "),
    (["list", "--state", "nosuch"], "there is no state 'nosuch'; there are unsubmitted,"),
    (["runopts", "nosuch"], "there is no scheduler 'nosuch'; installed are: "),
    (["events", "nosuch"], "there is no run 'nosuch' on this host"),
    (["events"], "no run has left a journal here yet; name a journal or a log folder"),
    (["checkpoints", "nosuch"], "nosuch does not exist: name the folder that the checkpoints were written to"),
    (["checkpoints", "ok.py"], "ok.py is a file: name the folder that the checkpoints were written to"),
    (["checkpoints", "nosuch://folder"], "cannot use 'nosuch://folder' as storage"),
    (["rounds", "host:port"], "'host:port' is not an endpoint: the port must be a number from 0 to 65535"),
    (["serve", "localhost:0", "--tls-cert", "ok.py"], "a coordinator with TLS needs both --tls-cert and --tls-key"),
    (
        ["serve", "localhost:0", "--tls-cert", "ok.py", "--tls-key", "ok.py"],
        "cannot load the TLS files ok.py, ok.py: not in PEM form; name files in PEM form",
    ),
]


@pytest.mark.parametrize(("words", "sentence"), COMMANDS)
def test_commands_and_flags(words: list[str], sentence: str, invoke: Invoke) -> None:
    answered(invoke(*words), sentence)


@pytest.mark.parametrize(("words", "sentence"), LAUNCHES)
def test_what_to_launch(words: list[str], sentence: str, invoke: Invoke) -> None:
    answered(invoke("launch", *words), sentence)


@pytest.mark.parametrize(("words", "sentence"), RUNS)
def test_what_to_run(words: list[str], sentence: str, invoke: Invoke) -> None:
    answered(invoke("run", *words), sentence)
    assert not list(Path("../state").glob("jobs/*/*"))


@pytest.mark.parametrize(("words", "sentence"), QUESTIONS)
def test_what_to_look_at(words: list[str], sentence: str, invoke: Invoke) -> None:
    answered(invoke(*words), sentence)


def test_workers_for_gpus_that_are_not_there(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    said = invoke("launch", "--nproc-per-node", "gpu", "ok.py")

    answered(said, "--nproc-per-node gpu: no GPU is visible here (CUDA_VISIBLE_DEVICES may hide them)")


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("LOGLEVEL", "loud", "LOGLEVEL is 'LOUD' but must be one of DEBUG, INFO, WARNING, ERROR, CRITICAL"),
        ("PET_NNODES", "x", "--nnodes 'x' must be a number or MIN:MAX"),
        ("PET_MAX_RESTARTS", "x", "invalid value for '--max-restarts': 'x' is not a valid integer"),
        ("HOLDFAST_SECRET_FILE", "nosuch", "cannot read the secret file nosuch: No such file or directory"),
    ],
)
def test_variables_that_say_nothing(
    variable: str, value: str, sentence: str, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)

    answered(invoke("launch", "ok.py"), sentence)


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        (".torchxconfig", "a = 1\n", ".torchxconfig, line 1: something is set before the first [section]"),
        (".torchxconfig", "[local]\na\nb\n", ".torchxconfig, line 2: this is not of the form key = value"),
        (".torchxconfig", "[local]\nprepend_cwd = maybe\n", "'prepend_cwd' is 'maybe' but must be bool"),
        (".holdfast.toml", "[cli.run\n", ".holdfast.toml, line 1: "),
        (".holdfast.toml", "cli = 3\n", ".holdfast.toml: 'cli' must be a section, as in [cli.<name>]"),
        (
            ".holdfast.toml",
            '[component."utils.echo"]\nmgs = "x"\n',
            "utils.echo has no argument 'mgs'; did you mean msg?",
        ),
        (".holdfast.toml", "[resources.big]\ncpus = 3\n", "the resource 'big' has no field 'cpus'; there are cpu,"),
    ],
)
def test_settings_files(name: str, text: str, sentence: str, invoke: Invoke) -> None:
    Path(name).write_text(text)

    answered(invoke("run", "utils.echo"), sentence)


@pytest.mark.parametrize(
    ("words", "text", "sentence"),
    [
        (["-cfg", "log_dri=x"], "", "the run option 'log_dri' is not known here; did you mean 'log_dir'?"),
        (["-cfg", "zzz=x"], "", "the run option 'zzz' is not known here; `holdfast runopts` lists the known ones"),
        ([], "[clii.run]\ncomponent = 'x'\n", "the section [clii] is not known and is left out"),
        ([], "[cli.run]\ncomponnet = 'x'\n", "[cli.run] has no 'componnet'; did you mean 'component'?"),
    ],
)
def test_what_may_be_meant_for_another_program_is_told_once_and_left_out(
    words: list[str], text: str, sentence: str, invoke: Invoke
) -> None:
    Path(".holdfast.toml").write_text(text)
    said = invoke("run", *words, "--dryrun", "utils.echo")

    assert said.code == 0, said.err
    answered(said, sentence, 0)


def test_a_setting_of_the_rendezvous_that_is_misspelt_is_told(invoke: Invoke) -> None:
    said = invoke("launch", "--rdzv-conf", "tiemout=3", "--nproc-per-node", "2", "--no-python", "./nosuch")

    assert "holdfast: --rdzv-conf: there is no setting 'tiemout'; did you mean timeout?\n" in said.err


def test_a_file_that_torchxconfig_names_and_that_is_not_there(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHXCONFIG", str(tmp_path / "nosuch"))

    answered(invoke("run", "--dryrun", "utils.echo"), f"$TORCHXCONFIG names {tmp_path}/nosuch, which is not a file", 0)


def test_a_script_whose_path_has_spaces_runs(invoke: Invoke) -> None:
    Path("my folder").mkdir()
    Path("my folder/my script.py").write_text("print('here')")

    said = invoke("run", "-j", "1x1", "my folder/my script.py")

    assert said.code == 0, said.err
    assert "here" in said.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["log", "{}/nosuch"], "has no role 'nosuch'; there is echo"),
        (["log", "{}/echo/7"], "has no replica echo/7"),
        (["log", "{}/echo/x"], "'x' are not numbers of replicas: write them as 0,1,2"),
        (["log", "--regex", "(", "{}"], "'(' is not a regular expression: "),
        (["log", "--since", "lately", "{}"], "'lately' is not a time: write 10m for ten minutes ago, 14:05, or 2026-"),
        (["wait", "--timeout", "x", "{}"], "'x' is not a valid float"),
    ],
)
def test_questions_about_a_job_that_it_has_no_answer_to(words: list[str], sentence: str, invoke: Invoke) -> None:
    handle = invoke("run", "utils.echo").out.strip()

    answered(invoke(*(word.format(handle) for word in words)), sentence)
