"""The SSH scheduler: what users call. Hosts are asked side by side; one that does not answer holds up no other."""

from __future__ import annotations

import os
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.errors import HoldfastError, UnavailableError, UsageError
from holdfast.facts import facts
from holdfast.home import expand, state_folder
from holdfast.schedulers import cluster
from holdfast.schedulers.api import LogQuery, Scheduler
from holdfast.schedulers.local.record import Shipment
from holdfast.schedulers.local.render import make_id
from holdfast.schedulers.local.scheduler import letters
from holdfast.schedulers.shipping import WORKSPACE, plan_copies, sizes_of, take_secret
from holdfast.schedulers.ssh import parse
from holdfast.schedulers.ssh.client import SshClient
from holdfast.schedulers.ssh.folders import SshJobs
from holdfast.schedulers.ssh.hosts import check_hosts, parse_hosts_file, place
from holdfast.schedulers.ssh.parse import Reply
from holdfast.schedulers.ssh.remote import HOME
from holdfast.schedulers.ssh.render import Access, SshRequest, check, for_host, host_id, show, used
from holdfast.specs import AppDef, AppDryRunInfo, CfgVal, Role, is_terminal, make_app_handle, runopts
from holdfast.workspace.api import Workspace, WorkspaceMixin

if TYPE_CHECKING:
    import builtins

    from holdfast.schedulers.replies import DescribeAppResponse, ListAppResponse

T = TypeVar("T")

#: Hosts that are asked at the same time.
SIDE_BY_SIDE = 32
#: How often hosts are asked while a job is waited for.
ASK_EVERY_S = 1.0
#: How often a broken connection is made anew while a log is followed, and the wait before.
RECONNECTS, RECONNECT_S = 20, 3.0


class SshScheduler(WorkspaceMixin[None], Scheduler[SshRequest]):
    """Runs jobs on hosts that one can log in to; see `holdfast.schedulers.ssh`."""

    def __init__(self, session_name: str, home: Path | None = None) -> None:
        super().__init__("ssh", session_name)
        self._home = (home or state_folder()).absolute()
        self._jobs = SshJobs(self._home, session_name)
        self._clients: dict[str, SshClient] = {}

    # -- submitting ----------------------------------------------------------------------------------------------------

    def _run_opts(self) -> runopts:
        options = runopts()
        options.add("hosts", type_=list[str], help="hosts, as ssh takes them; each runs one replica (--hosts a,b,c)")
        options.add("hosts_file", type_=str, help="file with a host on each line, in place of hosts")
        options.add("python", type_=str, default="python3", help="Python on the hosts, as in ~/venv/bin/python")
        options.add("folder", type_=str, help="folder on the hosts in which an app without a workspace runs; else home")
        options.add("first_host", type_=str, help="address at which the other hosts find the first one")
        options.add("ssh_config", type_=str, help="file of settings for ssh, in place of ~/.ssh/config")
        options.add("ssh_flags", type_=list[str], help="further flags of ssh, as in -p2222,-Jbastion")
        options.add("timeout_s", type_=float, default=10.0, help="how long a host may take to let us in")
        options.add("cancel_grace_s", type_=float, default=10.0, help="seconds between SIGTERM and SIGKILL")
        return options

    def _validate(self, app: AppDef, scheduler: str, cfg: Mapping[str, CfgVal] | None = None) -> None:
        """Refuse what hosts without a master cannot run; resources are not counted."""
        del scheduler, cfg
        check(app)

    def build_workspace_and_update_role(self, role: Role, workspace: Workspace, cfg: Mapping[str, CfgVal]) -> None:
        """Build nothing: the code travels when the job is submitted."""

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[SshRequest]:
        check(app)
        placed = place(app, _hosts(cfg))
        copies, shipments = plan_copies(app, f"{cluster.JOB_FOLDER}/{WORKSPACE}")
        folder = str(cfg.get("folder") or HOME)
        folder = f"{HOME}{folder[1:]}" if folder.startswith("~") else folder
        app_id = make_id(app.name, letters())
        site = cluster.Site(self.backend, self.session_name, app_id, {role.name: folder for role in app.roles} | copies)
        job = used(cluster.plan(app, {"cancel_grace_s": cfg.get("cancel_grace_s")}, site), placed)
        job.shipments = shipments
        config = str(cfg.get("ssh_config") or "")
        flags = cfg.get("ssh_flags") or []
        assert isinstance(flags, list)
        access = Access(
            python=str(cfg.get("python") or Access.python),
            config=str(expand(config).absolute()) if config else "",
            flags=flags,
            timeout_s=float(cfg.get("timeout_s") or Access.timeout_s),  # type: ignore[arg-type]
        )
        request = SshRequest(job, placed, access, str(cfg.get("first_host") or ""))
        return AppDryRunInfo(request, lambda made: show(made, sizes_of(made.job.shipments, self._home)))

    def schedule(self, dryrun_info: AppDryRunInfo[SshRequest]) -> str:
        """Ask every host whether it can run its replica, then start all of them; where one fails, none is left."""
        request = dryrun_info.request
        app_id = request.job.app_id
        client = self._client(request.access)
        order = {"verb": "probe", "session": self.session_name, "app_id": app_id}
        answers = _side_by_side(request.placed, lambda each: client.call(each.host, order))
        request, probed = _without_silent(request, answers)
        self._jobs.create(request)
        try:
            self._start(client, request, int(probed["port"]))
        except BaseException:
            self._each(request, lambda at, host: client.call(host, self._ending(app_id, at, "delete")))
            self._jobs.remove(app_id)
            raise
        return app_id

    def _start(self, client: SshClient, request: SshRequest, port: int) -> None:
        """Send every host its replica, with the code and the secret."""
        first = request.first_host or client.address_of(request.placed[0].host)
        key = take_secret(dict(os.environ))
        common = {
            "verb": "submit",
            "session": self.session_name,
            "first_host": first,
            "port": port,
            "secret": key.hex() if key is not None else "",  # which need not be text
            "has_code": bool(request.job.shipments),
        }
        with tempfile.NamedTemporaryFile(prefix="holdfast-code-") as file:
            body = Path(file.name) if request.job.shipments else None
            if body is not None:
                _pack(request.job.shipments, body, self._home)

            def submit(at: int, host: str) -> dict[str, Any]:
                return client.call(host, {**common, "request": for_host(request, at).to_json()}, body)

            for answer in self._each(request, submit):
                if isinstance(answer, HoldfastError):
                    raise answer

    # -- looking -------------------------------------------------------------------------------------------------------

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Say how a job is doing, or None where there is none of that id."""
        request = self._jobs.read(app_id)
        if request is None:
            return None
        replies = self._jobs.read_ended(app_id, request)
        is_known = replies is not None
        cancelled = self._jobs.cancelled(app_id)  # before the hosts are asked: what they say is then the end
        if replies is None:
            replies = self._ask(request)
        found = parse.describe(request, replies, self._jobs.submitted_at(app_id), cancelled=cancelled)
        if is_terminal(found.state) and not is_known and not any(reply.unreachable for reply in replies):
            self._jobs.write_ended(
                app_id, [parse.status_of(at, reply) for at, reply in zip(request.placed, replies, strict=True)]
            )
        return found

    def _ask(self, request: SshRequest) -> builtins.list[Reply]:
        client = self._client(request.access)

        def ask(at: int, host: str) -> dict[str, Any]:
            order = {"verb": "describe", "session": self.session_name, "id": host_id(request.job.app_id, at)}
            return client.call(host, order)

        answers = zip(request.placed, self._each(request, ask), strict=True)
        return [
            Reply(unreachable=str(answer)) if isinstance(answer, HoldfastError) else parse.parse_reply(placed, answer)
            for placed, answer in answers
        ]

    def exists(self, app_id: str) -> bool:
        """Whether there is a job of that id."""
        return self._jobs.exists(app_id)

    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> builtins.list[ListAppResponse]:
        """List the jobs of this session, the oldest first; hosts of jobs that have not ended are asked."""
        from holdfast.schedulers.replies import ListAppResponse

        del cfg
        listed = []
        for app_id in self._jobs.all():
            try:
                found = self.describe(app_id)
            except UsageError as error:
                facts.warn("ssh_record", str(error))
                continue
            if found is not None:
                handle = make_app_handle(self.backend, self.session_name, app_id)
                listed.append(ListAppResponse(app_id, found.state, handle, found.name, found.submitted_at))
        return sorted(listed, key=lambda each: each.submitted_at or 0.0)

    def wait_news(self, app_id: str, timeout: float) -> None:
        """Wait: hosts tell nothing by themselves."""
        del app_id
        time.sleep(min(timeout, ASK_EVERY_S))

    def read_log(self, app_id: str, query: LogQuery) -> Iterator[tuple[float, str]]:
        """Yield the lines of one replica; a connection that breaks is made anew, and goes on where it was."""
        request = self._jobs.known(app_id)
        who = (query.role, query.replica)
        at = next((n for n, each in enumerate(request.placed) if (each.role, each.number) == who), None)
        if at is None:
            there = ", ".join(f"{each.role}/{each.number}" for each in request.placed)
            raise UsageError(f"the job {app_id} has no replica {who[0]}/{who[1]}; it has {there}")
        order = {
            "verb": "log",
            "session": self.session_name,
            "id": host_id(app_id, at),
            "role": query.role,
            "number": query.replica,
            "regex": query.regex,
            "since": query.since.timestamp() if query.since else None,
            "until": query.until.timestamp() if query.until else None,
            "follow": query.follow,
            "streams": str(query.streams) if query.streams else None,
        }
        return self._lines(app_id, self._client(request.access), request.placed[at].host, order)

    def _lines(
        self, app_id: str, client: SshClient, host: str, order: Mapping[str, Any]
    ) -> Iterator[tuple[float, str]]:
        """Yield a replica's lines; where its host is lost, a note says so, and the logs of the others can be read."""
        shown, trouble = 0, f"{host} broke off in the middle of the log"
        for _ in range(RECONNECTS):
            passed = 0
            try:
                for line in client.lines(host, order):
                    if isinstance(line, dict):
                        if "error" in line:
                            raise UsageError(f"{host}: {line['error']}")
                        return
                    passed += 1
                    if passed > shown:  # a log only grows, so the first lines are those that came before
                        shown = passed
                        yield float(line[0]), str(line[1])
            except UnavailableError as error:
                trouble = str(error)
            found = self.describe(app_id) if order["follow"] else None
            if found is None or is_terminal(found.state):
                break
            time.sleep(RECONNECT_S)
        yield time.time(), f"[holdfast: the log ends here: {trouble}]"

    # -- ending --------------------------------------------------------------------------------------------------------

    def _cancel_existing(self, app_id: str) -> None:
        self._end(app_id, "cancel")

    def kill(self, app_id: str) -> None:
        """End a job at once: no replica gets time to end by itself."""
        if self.exists(app_id):
            self._end(app_id, "kill")

    def _end(self, app_id: str, how: str) -> None:
        request = self._jobs.known(app_id)
        if self._jobs.read_ended(app_id, request) is not None:
            return
        self._jobs.cancel(app_id)
        client = self._client(request.access)
        answers = self._each(request, lambda at, host: client.call(host, self._ending(app_id, at, how)))
        for answer in answers:
            if isinstance(answer, HoldfastError):
                facts.warn("ssh_cancel", f"a replica could not be asked to end: {answer}")

    def _delete_existing(self, app_id: str) -> None:
        request = self._jobs.known(app_id)
        client = self._client(request.access)
        for answer in self._each(request, lambda at, host: client.call(host, self._ending(app_id, at, "delete"))):
            if isinstance(answer, HoldfastError):
                raise UnavailableError(f"the job {app_id} is not deleted: {answer}; delete it again when that is fixed")
        self._jobs.remove(app_id)

    def _ending(self, app_id: str, at: int, how: str) -> dict[str, Any]:
        return {"verb": "end", "session": self.session_name, "id": host_id(app_id, at), "how": how}

    def disconnect(self) -> None:
        """End the connections to hosts at once, which else are kept for a minute; jobs go on."""
        for client in self._clients.values():
            client.disconnect()

    # -- hosts ---------------------------------------------------------------------------------------------------------

    def _client(self, access: Access) -> SshClient:
        return self._clients.setdefault(repr(access), SshClient(access, self._home))

    def _each(
        self, request: SshRequest, call: Callable[[int, str], dict[str, Any]]
    ) -> builtins.list[dict[str, Any] | HoldfastError]:
        """Call something for every replica's host, side by side."""
        places = list(enumerate(request.placed))
        return _side_by_side(places, lambda each: call(each[0], each[1].host))


def _side_by_side(items: Sequence[T], call: Callable[[T], dict[str, Any]]) -> list[dict[str, Any] | HoldfastError]:
    """Return what each call answered, or the error that it raised, in order."""

    def attempt(item: T) -> dict[str, Any] | HoldfastError:
        try:
            return call(item)
        except HoldfastError as error:
            return error

    if not items:
        return []
    with ThreadPoolExecutor(min(len(items), SIDE_BY_SIDE), thread_name_prefix="ssh") as pool:
        return list(pool.map(attempt, items))


def _without_silent(
    request: SshRequest, answers: Sequence[dict[str, Any] | HoldfastError]
) -> tuple[SshRequest, dict[str, Any]]:
    """Leave out hosts that cannot be reached, where the app can do without; else raise why one cannot.

    Returns the request, and what the first host said.
    """
    silent = [answer for answer in answers if isinstance(answer, HoldfastError)]
    good = [(each, answer) for each, answer in zip(request.placed, answers, strict=True) if isinstance(answer, dict)]
    if silent:
        left = AppDef(request.job.name, request.job.roles)
        try:
            placed = place(left, [each.host for each, _ in good])
        except UsageError:
            raise silent[0] from None
        for error in silent:
            facts.warn("ssh_host_left_out", f"the job starts without a host: {error}")
        request = SshRequest(used(request.job, placed), placed, request.access, request.first_host)
    return request, good[0][1]


def _hosts(cfg: Mapping[str, CfgVal]) -> list[str]:
    named, file = cfg.get("hosts") or [], cfg.get("hosts_file")
    assert isinstance(named, list)
    if named and file:
        raise UsageError("hosts and hosts_file both name the hosts: leave one of them out")
    if not file:
        return check_hosts(named)
    try:
        return check_hosts(parse_hosts_file(expand(str(file)).read_text()))
    except OSError as error:
        raise UsageError(f"cannot read the hosts from {file}: {error.strerror}") from None


def _pack(shipments: Sequence[Shipment], target: Path, home: Path) -> None:
    """Write the code that is shipped into a tar file, as it will lie in the job's folder."""
    from holdfast.workspace.shipment import walk

    with tarfile.open(target, "w:gz", compresslevel=1) as tar:
        for shipment in shipments:
            for source, below in shipment.roots.items():
                root = Path(source)
                where = "/".join(filter(None, [WORKSPACE, shipment.folder, below]))
                if root.is_file():
                    tar.add(root, f"{where}/{root.name}")
                    continue
                _add_folder(tar, where)
                for path, entry in walk(root, avoid={home.resolve()}):
                    tar.add(entry.path, f"{where}/{path}", recursive=False)


def _add_folder(tar: tarfile.TarFile, name: str) -> None:
    made = tarfile.TarInfo(name)
    made.type, made.mode = tarfile.DIRTYPE, 0o700
    tar.addfile(made)
