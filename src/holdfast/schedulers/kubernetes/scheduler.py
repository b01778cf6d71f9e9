"""The Kubernetes scheduler: what users call. Everything that it knows of a job is on the cluster."""

from __future__ import annotations

import base64
import binascii
import json
import os
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import HoldfastError, UnavailableError, UsageError
from holdfast.facts import facts
from holdfast.home import expand, state_folder
from holdfast.schedulers import cluster
from holdfast.schedulers.api import LogQuery, Scheduler
from holdfast.schedulers.kubernetes import code, render
from holdfast.schedulers.kubernetes.client import KubernetesClient
from holdfast.schedulers.kubernetes.names import (
    CANCELLED_ANNOTATION,
    CODE,
    JOB_LABEL,
    MANAGED_LABEL,
    MANAGER,
    PART_LABEL,
    RECORD,
    REPLICA,
    REPLICA_LABEL,
    ROLE_LABEL,
    SESSION_LABEL,
    is_name,
    label_value,
    make_app_id,
    make_name,
    role_names,
    split_app_id,
)
from holdfast.schedulers.kubernetes.node import REQUEST_KEY, SECRET_KEY, SETTINGS_KEY
from holdfast.schedulers.kubernetes.options import JOBS, OPTIONS, Options, check_options
from holdfast.schedulers.kubernetes.pod import image_of
from holdfast.schedulers.kubernetes.render import KubernetesRequest
from holdfast.schedulers.kubernetes.show import show
from holdfast.schedulers.kubernetes.whereabouts import Whereabouts
from holdfast.schedulers.local.record import LocalRequest
from holdfast.schedulers.local.scheduler import letters
from holdfast.schedulers.shipping import WORKSPACE, plan_copies, sizes_of, take_secret
from holdfast.specs import AppDef, AppDryRunInfo, AppState, CfgVal, Role, is_terminal, make_app_handle, runopts
from holdfast.workspace.api import Workspace, WorkspaceMixin

if TYPE_CHECKING:
    import builtins

    from holdfast.schedulers.kubernetes.parse import Seen
    from holdfast.schedulers.replies import DescribeAppResponse, ListAppResponse

#: How long the pods of a deleted job may take to end before they are removed by force.
END_TIMEOUT_S = 120.0
#: How often a job is looked at whose log is followed.
ASK_EVERY_S = 1.0
#: More than code has: the user named the wrong folder.
WORKSPACE_BYTES_MAX = 512 * 1024 * 1024
#: What an extension's object is called, by the kind of the request.
WHOLES = {"jobset": "JobSet", "volcano": "VolcanoJob"}
#: Remembers the kind of the request, and where the job's objects are.
KIND_KEY = "kind"


class KubernetesScheduler(WorkspaceMixin[None], Scheduler[KubernetesRequest]):
    """Runs jobs on a Kubernetes cluster; see `holdfast.schedulers.kubernetes`."""

    def __init__(self, session_name: str, home: Path | None = None) -> None:
        super().__init__("kubernetes", session_name)
        self._home = (home or state_folder()).absolute()
        self._whereabouts = Whereabouts(self._home, session_name)
        self._clients: dict[tuple[str, str], KubernetesClient] = {}

    # -- submitting ----------------------------------------------------------------------------------------------------

    def _run_opts(self) -> runopts:
        options = runopts()
        for name, kind, default, text in OPTIONS:
            options.add(name, type_=kind, default=default, help=text)
        return options

    def _validate(self, app: AppDef, scheduler: str, cfg: Mapping[str, CfgVal] | None = None) -> None:
        """Refuse what would not run as promised; a role without resources takes what it gets."""
        del scheduler
        options = self._options(cfg or {}, "default")
        render.check(app, options)
        for role in app.roles:
            image_of(role, options)

    def build_workspace_and_update_role(self, role: Role, workspace: Workspace, cfg: Mapping[str, CfgVal]) -> None:
        """Build nothing: the code travels in Secrets, which are made when the job is submitted."""

    def _options(self, cfg: Mapping[str, CfgVal], namespace: str) -> Options:
        documents = {name: _document(name, str(cfg[name])) for name in ("affinity", "pod_patch") if cfg.get(name)}
        return check_options(cfg, namespace, documents)

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[KubernetesRequest]:
        namespace = str(cfg.get("namespace") or self._own_namespace(cfg))
        options = self._options(cfg, namespace)
        render.check(app, options)
        name = make_name(app.name, letters())
        copies, shipments = plan_copies(app, f"{cluster.JOB_FOLDER}/{WORKSPACE}")
        cwds = {role.name: render.WORK_FOLDER for role in app.roles}
        site = cluster.Site(self.backend, self.session_name, make_app_id(namespace, name), {**cwds, **copies})
        job = cluster.plan(app, {}, site)
        job.shipments = shipments
        total = sum(size for _, size in sizes_of(shipments, self._home).values())
        if total > WORKSPACE_BYTES_MAX:
            raise UsageError(f"the workspace has {total / 1e6:.0f} MB: name what stays behind in .holdfastignore")
        request = render.render(app, job, name, options, code.pack_code(shipments, self._home))
        request.kubeconfig, request.context = str(cfg.get("kubeconfig") or ""), str(cfg.get("context") or "")
        return AppDryRunInfo(request, self._show)

    def _own_namespace(self, cfg: Mapping[str, CfgVal]) -> str:
        """Return the namespace that the kubeconfig names; without a cluster a dry run shows the usual one."""
        try:
            return self._client(str(cfg.get("kubeconfig") or ""), str(cfg.get("context") or "")).namespace
        except UnavailableError:
            return "default"

    def _show(self, request: KubernetesRequest) -> str:
        return show(request, sizes_of(request.job.shipments, self._home))

    def schedule(self, dryrun_info: AppDryRunInfo[KubernetesRequest]) -> str:
        """Create the job's objects; what was made is removed again where one is refused."""
        request = dryrun_info.request
        client = self._client(request.kubeconfig, request.context)
        key = take_secret(dict(os.environ))
        data = {
            REQUEST_KEY: code.pack_request(request.job),
            SETTINGS_KEY: json.dumps(request.settings).encode(),
            KIND_KEY: request.kind.encode(),
            **({SECRET_KEY: key} if key is not None else {}),
        }
        record = client.create(render.record_secret(request, data))
        try:
            for obj in [*render.code_secrets(request), *request.objects]:
                client.create(render.owned_by(obj, record))
        except BaseException:
            client.delete("Secret", request.namespace, request.name)
            raise
        app_id = make_app_id(request.namespace, request.name)
        if request.kubeconfig or request.context:
            self._whereabouts.remember(app_id, request.kubeconfig, request.context)
        return app_id

    # -- looking -------------------------------------------------------------------------------------------------------

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Say how a job is doing, or None where there is none of that id."""
        from holdfast.schedulers.kubernetes import parse

        seen = self._look(app_id)
        if seen is None:
            return None
        # There is no master that could do this when the job ends.
        for name in parse.leftovers(seen, parse.statuses(seen)):
            client, namespace, _ = self._find(app_id)
            client.delete("Job", namespace, name)
        return parse.describe(app_id, seen)

    def _look(self, app_id: str) -> Seen | None:
        from holdfast.schedulers.kubernetes.parse import Seen, judge, statuses

        client, namespace, name = self._find(app_id)
        record = self._record(client, namespace, name)
        if record is None:
            return None
        selector = f"{JOB_LABEL}={name},{PART_LABEL}={REPLICA}"
        kind = _data(record, KIND_KEY).decode()
        whole = client.get(WHOLES[kind], namespace, name) if kind in WHOLES else None
        jobs = client.find("Job", namespace, selector)
        pods = client.find("Pod", namespace, selector)
        seen = Seen(_request_of(record), record, jobs, pods, (), whole, kind != JOBS)
        if len(pods) >= len(jobs) or judge(seen, statuses(seen))[0] is not AppState.PENDING:
            return seen
        # Only where pods are missing: a quota or an admission policy may be against them.
        events = client.find("Event", namespace, fields="involvedObject.kind=Job,type=Warning")
        return Seen(seen.job, record, jobs, pods, events, whole, kind != JOBS)

    def _record(self, client: KubernetesClient, namespace: str, name: str) -> dict[str, Any] | None:
        """Return the Secret that remembers a job of this session."""
        if not is_name(name) or not is_name(namespace):
            return None
        found = client.get("Secret", namespace, name)
        labels = (found or {}).get("metadata", {}).get("labels") or {}
        wanted = {MANAGED_LABEL: MANAGER, PART_LABEL: RECORD, SESSION_LABEL: label_value(self.session_name)}
        return found if wanted.items() <= labels.items() else None

    def exists(self, app_id: str) -> bool:
        """Whether there is a job of that id."""
        return self._record(*self._find(app_id)) is not None

    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> builtins.list[ListAppResponse]:
        """List the jobs of this session in one namespace, the oldest first."""
        from holdfast.schedulers.kubernetes import parse
        from holdfast.schedulers.replies import ListAppResponse

        given = dict(cfg or {})
        client = self._client(str(given.get("kubeconfig") or ""), str(given.get("context") or ""))
        namespace = str(given.get("namespace") or client.namespace)
        session = f"{MANAGED_LABEL}={MANAGER},{SESSION_LABEL}={label_value(self.session_name)}"
        records = client.find("Secret", namespace, f"{session},{PART_LABEL}={RECORD}")
        if not records:
            return []
        jobs = client.find("Job", namespace, f"{session},{PART_LABEL}={REPLICA}")
        pods = client.find("Pod", namespace, f"{session},{PART_LABEL}={REPLICA}")
        listed = []
        for record in records:
            name = record["metadata"]["name"]
            try:
                job, kind = _request_of(record), _data(record, KIND_KEY).decode()
                whole = client.get(WHOLES[kind], namespace, name) if kind in WHOLES else None
            except HoldfastError as error:
                facts.warn("kubernetes_record", f"the job {name} is left out: {error}")
                continue
            mine = [[each for each in found if _belongs(each, name)] for found in (jobs, pods)]
            seen = parse.Seen(job, record, mine[0], mine[1], (), whole, kind != JOBS)
            state, _ = parse.judge(seen, parse.statuses(seen))
            app_id = make_app_id(namespace, name)
            handle = make_app_handle(self.backend, self.session_name, app_id)
            at = parse.seconds(record["metadata"].get("creationTimestamp"))
            listed.append(ListAppResponse(app_id, state, handle, job.name, at))
        return sorted(listed, key=lambda each: (each.submitted_at or 0.0, each.app_id))

    def wait_news(self, app_id: str, timeout: float) -> None:
        """Return when a Job or a pod of the job has changed, at the latest after about `timeout` seconds."""
        client, namespace, name = self._find(app_id)
        if timeout < ASK_EVERY_S or not is_name(name):
            time.sleep(timeout)
            return
        selector = f"{JOB_LABEL}={name},{PART_LABEL}={REPLICA}"
        # The Job says the last word, a moment after its pod.
        version = client.version_of("Job", namespace, selector)
        client.wait_change("Job", namespace, selector, version, min(timeout, ASK_EVERY_S))

    def read_log(self, app_id: str, query: LogQuery) -> Iterator[tuple[float, str]]:
        """Yield the lines of one replica, of all its pods that are left; to follow is until it has ended."""
        from holdfast.schedulers.kubernetes import logs
        from holdfast.schedulers.kubernetes.parse import seconds
        from holdfast.schedulers.local.logs import wanted
        from holdfast.schedulers.replies import Stream

        client, namespace, name = self._find(app_id)
        record = self._record(client, namespace, name)
        if record is None:
            raise UsageError(f"there is no job {app_id} here; `holdfast list -s kubernetes` lists the ones that exist")
        job = _request_of(record)
        cluster.portion(job, query.role, query.replica)
        if query.streams and Stream(query.streams) is not Stream.COMBINED:
            raise UsageError(
                "Kubernetes keeps what a pod prints in one log: stdout and stderr cannot be shown separately"
            )
        selector = (
            f"{JOB_LABEL}={name},{ROLE_LABEL}={role_names(job.roles)[query.role]},{REPLICA_LABEL}={query.replica}"
        )

        def pods() -> builtins.list[logs.Pod]:
            found: builtins.list[logs.Pod] = [*client.find("Pod", namespace, selector)]
            return sorted(found, key=lambda pod: seconds(pod["metadata"].get("creationTimestamp")) or 0.0)

        return logs.follow(
            wanted(query),
            pods,
            lambda pod: logs.PodLog(client, namespace, pod),
            (lambda: self._has_ended(app_id, query)) if query.follow else None,
        )

    def _has_ended(self, app_id: str, query: LogQuery) -> bool:
        """Whether a replica writes no more."""
        found = self.describe(app_id)
        if found is None or is_terminal(found.state) or found.state is AppState.UNKNOWN:
            return True
        replicas = next(role.replicas for role in found.roles_statuses if role.role == query.role)
        return any(each.id == query.replica and is_terminal(each.state) for each in replicas)

    # -- ending --------------------------------------------------------------------------------------------------------

    def _cancel_existing(self, app_id: str) -> None:
        found = self.describe(app_id)
        if found is not None and not is_terminal(found.state):
            self._end(app_id)

    def _end(self, app_id: str, grace_s: int | None = None) -> None:
        """Note that the job was cancelled, and remove everything else of it."""
        client, namespace, name = self._find(app_id)
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        record = self._record(client, namespace, name)
        if record is None:
            return
        client.annotate("Secret", namespace, name, {CANCELLED_ANNOTATION: now})
        kind = _data(record, KIND_KEY).decode()
        if kind in WHOLES:
            client.delete(WHOLES[kind], namespace, name)
        mine = f"{JOB_LABEL}={name}"
        client.delete_all("Job", namespace, mine)
        client.delete_all("Pod", namespace, mine, grace_s)
        client.delete_all("Secret", namespace, f"{mine},{PART_LABEL}={CODE}")
        client.delete("Service", namespace, name)

    def kill(self, app_id: str) -> None:
        """End a job at once: no replica gets time to end by itself."""
        found = self.describe(app_id)
        if found is not None and not is_terminal(found.state):
            self._end(app_id, grace_s=0)

    def _delete_existing(self, app_id: str) -> None:
        client, namespace, name = self._find(app_id)
        self._end(app_id)
        selector = f"{JOB_LABEL}={name},{PART_LABEL}={REPLICA}"
        deadline = time.monotonic() + END_TIMEOUT_S
        while client.find("Pod", namespace, selector):
            if time.monotonic() > deadline:  # on a node that does not answer
                client.delete_all("Pod", namespace, selector, grace_s=0)
                break
            time.sleep(0.2)
        client.delete("Secret", namespace, name)
        self._whereabouts.forget(app_id)

    def close(self) -> None:
        """Close the connections; jobs go on."""
        while self._clients:
            self._clients.popitem()[1].close()

    def _find(self, app_id: str) -> tuple[KubernetesClient, str, str]:
        """Return the cluster of a job, its namespace there and its name."""
        client = self._client(*self._whereabouts.of(app_id))
        return client, *split_app_id(app_id, client.namespace)

    def _client(self, kubeconfig: str = "", context: str = "") -> KubernetesClient:
        if (kubeconfig, context) not in self._clients:
            self._clients[kubeconfig, context] = KubernetesClient(
                str(expand(kubeconfig)) if kubeconfig else "", context
            )
        return self._clients[kubeconfig, context]


def _belongs(obj: Mapping[str, Any], name: str) -> bool:
    return bool(obj["metadata"]["labels"].get(JOB_LABEL) == name)


def _data(record: Mapping[str, Any], key: str) -> bytes:
    try:
        return base64.b64decode(record["data"][key])
    except (KeyError, TypeError, binascii.Error) as error:
        raise UsageError(f"the Secret {record['metadata']['name']} is not the record of a job: {error!r}") from error


def _request_of(record: Mapping[str, Any]) -> LocalRequest:
    try:
        return code.unpack_request(_data(record, REQUEST_KEY))
    except (OSError, EOFError, ValueError) as error:
        raise UsageError(f"the record of the job {record['metadata']['name']} cannot be read: {error}") from error


def _document(name: str, text: str) -> dict[str, Any]:
    """Read an object that an option holds: JSON, YAML, or the name of a file with one of them."""
    source = text
    if not text.lstrip().startswith("{") and "\n" not in text:
        try:
            source = expand(text).read_text()
        except OSError as error:
            raise UsageError(f"{name}={text} is neither an object nor a file that can be read: {error}") from None
    try:
        found = json.loads(source)
    except ValueError:
        found = _yaml(name, source)
    if not isinstance(found, dict):
        raise UsageError(f'{name}={text} must be an object, as in {{"key": "value"}}')
    return found


def _yaml(name: str, text: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise UnavailableError(f"{name} is YAML, which needs PyYAML: pip install 'holdfast[kubernetes]'") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"{name} is neither JSON nor YAML: {error}") from None
