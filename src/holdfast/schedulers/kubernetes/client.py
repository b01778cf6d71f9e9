"""The official client of Kubernetes, with its answers as plain data; nothing is decided here."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from holdfast.errors import HoldfastError, UnavailableError, UsageError

#: A call that takes longer than this counts as failed.
TIMEOUT_S = 60.0
#: How long the server may take to answer at all, when it is asked to stream.
CONNECT_S = 10.0
RETRIES = 2
#: Where a pod finds the namespace that it is in.
_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_OTHERS = {"JobSet": "/apis/jobset.x-k8s.io/v1alpha2", "VolcanoJob": "/apis/batch.volcano.sh/v1alpha1"}
_PLURALS = {
    "Secret": ("/api/v1", "secrets"),
    "Service": ("/api/v1", "services"),
    "Pod": ("/api/v1", "pods"),
    "Event": ("/api/v1", "events"),
    "Job": ("/apis/batch/v1", "jobs"),
    "JobSet": (_OTHERS["JobSet"], "jobsets"),
    "VolcanoJob": (_OTHERS["VolcanoJob"], "jobs"),
}


class _RefusedError(HoldfastError):
    """The server answered with an error."""

    def __init__(self, status: int, body: bytes, reason: str) -> None:
        super().__init__(f"{status} {reason}")
        self.status, self.body, self.reason = status, body, reason


def kind_of(obj: Mapping[str, Any]) -> str:
    """Return by which name an object's kind is known here: Volcano's jobs have that of core ones."""
    return "VolcanoJob" if str(obj["apiVersion"]).startswith("batch.volcano.sh/") else str(obj["kind"])


class KubernetesClient:
    """One cluster, as a kubeconfig and its context name it, or the one that this program runs in."""

    def __init__(self, kubeconfig: str = "", context: str = "") -> None:
        try:
            import kubernetes
        except ImportError:
            raise UnavailableError(
                "the scheduler 'kubernetes' needs the package kubernetes: pip install 'holdfast[kubernetes]'"
            ) from None
        self.namespace, self._settings = _load(kubernetes, kubeconfig, context)
        self._api = kubernetes.client.ApiClient(self._settings)
        self.server = str(self._settings.host).rstrip("/")

    # -- objects -------------------------------------------------------------------------------------------------------

    def create(self, obj: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object and return it as the cluster has it; raises `UsageError` where it is refused."""
        kind = kind_of(obj)
        return self._json("POST", self._path(kind, obj["metadata"]["namespace"]), body=obj, kind=kind)

    def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        """Return an object; None where there is none of that name."""
        return self._json("GET", f"{self._path(kind, namespace)}/{name}", kind=kind, absent=True) or None

    def find(self, kind: str, namespace: str, selector: str = "", fields: str = "") -> list[dict[str, Any]]:
        """Return the objects whose labels, and fields, are as wanted."""
        query = [("labelSelector", selector), ("fieldSelector", fields)]
        found = self._json("GET", self._path(kind, namespace), query=[each for each in query if each[1]], kind=kind)
        return list(found.get("items") or [])

    def annotate(self, kind: str, namespace: str, name: str, annotations: Mapping[str, str]) -> None:
        """Add annotations to an object; no error where it is gone."""
        body = {"metadata": {"annotations": dict(annotations)}}
        path = f"{self._path(kind, namespace)}/{name}"
        self._json("PATCH", path, body=body, kind=kind, absent=True, content="application/merge-patch+json")

    def delete(self, kind: str, namespace: str, name: str, grace_s: int | None = None) -> None:
        """Delete an object and all that it owns; no error where it is gone."""
        self._json("DELETE", f"{self._path(kind, namespace)}/{name}", body=_deletion(grace_s), kind=kind, absent=True)

    def delete_all(self, kind: str, namespace: str, selector: str, grace_s: int | None = None) -> None:
        """Delete the objects whose labels are as wanted, with all that they own."""
        query = [("labelSelector", selector)]
        self._json("DELETE", self._path(kind, namespace), query=query, body=_deletion(grace_s), kind=kind, absent=True)

    # -- streams -------------------------------------------------------------------------------------------------------

    def wait_change(self, kind: str, namespace: str, selector: str, version: str, timeout_s: float) -> None:
        """Return when an object has changed since this version, at the latest after `timeout_s` seconds."""
        seconds = max(1, round(timeout_s))
        query = [("labelSelector", selector), ("watch", "true"), ("resourceVersion", version)]
        query.append(("timeoutSeconds", str(seconds)))
        path = self._path(kind, namespace)
        with self._stream(path, query, read_s=timeout_s, what=f"watch {kind}s") as lines:
            next(lines, b"")  # the end of the time, or of the connection, is news as well: the caller looks by itself

    def version_of(self, kind: str, namespace: str, selector: str) -> str:
        """Return the version from which on changes can be waited for."""
        query = [("labelSelector", selector), ("limit", "1")]
        return str(
            self._json("GET", self._path(kind, namespace), query=query, kind=kind)["metadata"]["resourceVersion"]
        )

    @contextlib.contextmanager
    def log(
        self, namespace: str, pod: str, *, follow: bool, since: str = "", container: str
    ) -> Iterator[Iterator[bytes]]:
        """Stream a pod's log, each line behind its time; nothing where the pod is gone or has not begun."""
        query = [("timestamps", "true"), ("follow", "true" if follow else "false"), ("container", container)]
        query += [("sinceTime", since)] if since else []
        path = f"{self._path('Pod', namespace)}/{pod}/log"
        with self._stream(path, query, read_s=None, what=f"the log of {pod}") as lines:
            yield lines

    def close(self) -> None:
        """Close the connections."""
        self._api.rest_client.pool_manager.clear()

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _path(self, kind: str, namespace: str) -> str:
        root, plural = _PLURALS[kind]
        return f"{root}/namespaces/{namespace}/{plural}"

    def _call(
        self,
        method: str,
        path: str,
        query: list[tuple[str, str]],
        body: Any = None,
        content: str = "application/json",
        read_s: float | None = TIMEOUT_S,
    ) -> Any:
        """Call the server; returns its answer, whose body is not read yet. Raises `_RefusedError`.

        The client's own methods take other arguments in each of its versions. What is the same in all of them is how
        it authenticates, and its pool of connections, which has the certificates and the proxy.
        """
        import urllib3

        headers = {"Accept": "application/json", **({"Content-Type": content} if body is not None else {})}
        for each in self._settings.auth_settings().values():
            if each and each["in"] == "header" and each["value"]:
                headers[each["key"]] = each["value"]
        address = f"{self.server}{path}{'?' + urlencode(query) if query else ''}"
        settings: dict[str, Any] = {
            "body": json.dumps(body).encode() if body is not None else None,
            "headers": headers,
            "timeout": urllib3.Timeout(connect=CONNECT_S, read=read_s),
            # Not left to urllib3, which would write a warning of its own for each attempt.
            "retries": urllib3.Retry(total=0, redirect=0, status=0),
            "preload_content": False,
        }
        request = self._api.rest_client.pool_manager.request
        for left in reversed(range(RETRIES + 1)):
            try:
                answer = request(method, address, **settings)
                break
            except urllib3.exceptions.MaxRetryError as error:
                never_there = (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError)
                if not left or not isinstance(error.reason, never_there):
                    raise
        if not 200 <= answer.status < 300:
            said = answer.read()
            answer.release_conn()
            raise _RefusedError(answer.status, said, answer.reason or "")
        return answer

    def _json(
        self,
        method: str,
        path: str,
        *,
        kind: str,
        query: list[tuple[str, str]] | None = None,
        body: Any = None,
        content: str = "application/json",
        absent: bool = False,
    ) -> dict[str, Any]:
        """Call the server and return what it says; empty where the object is absent and may be."""
        with self._mapped(method, kind):
            try:
                answer = self._call(method, path, query or [], body, content)
                data = answer.read()
                answer.release_conn()
            except _RefusedError as error:
                if error.status == 404 and absent:
                    return {}
                raise
        found = json.loads(data)
        assert isinstance(found, dict)
        return found

    @contextlib.contextmanager
    def _stream(
        self, path: str, query: list[tuple[str, str]], read_s: float | None, what: str
    ) -> Iterator[Iterator[bytes]]:
        answer = None
        with self._mapped("GET", what):
            try:
                answer = self._call("GET", path, query, read_s=read_s)
            except _RefusedError as error:
                if error.status not in (400, 404, 410):  # not begun yet, gone, or from too long ago
                    raise
        try:
            yield iter(()) if answer is None else _lines(answer)
        finally:
            if answer is not None:
                answer.close()

    @contextlib.contextmanager
    def _mapped(self, method: str, what: str) -> Iterator[None]:
        """Make errors of the client and of the connection ours."""
        import urllib3

        try:
            yield
        except _RefusedError as error:
            raise self._error(error, method, what) from None
        except (OSError, urllib3.exceptions.HTTPError) as error:
            cause = getattr(error, "reason", None) or error
            raise UnavailableError(f"cannot reach the Kubernetes cluster at {self.server}: {cause}") from None

    def _error(self, error: _RefusedError, method: str, what: str) -> HoldfastError:
        said = error.reason
        with contextlib.suppress(ValueError, AttributeError):
            said = json.loads(error.body).get("message") or said
        if error.status in (401, 403):
            return UnavailableError(f"Kubernetes does not let you: {said}")
        if error.status == 404 and what in ("JobSet", "VolcanoJob"):
            name = {"JobSet": "JobSet (jobset.x-k8s.io)", "VolcanoJob": "Volcano (batch.volcano.sh)"}[what]
            return UsageError(f"this cluster has no {name}: install it there, or leave kind out")
        if error.status in (400, 404, 409, 422) and method == "POST":
            return UsageError(f"Kubernetes refused the {what}: {said}")
        return UnavailableError(f"Kubernetes answered {error.status} to {method} {what}: {said}")


def _deletion(grace_s: int | None) -> dict[str, Any]:
    grace = {} if grace_s is None else {"gracePeriodSeconds": grace_s}
    return {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background", **grace}


def _lines(answer: Any) -> Iterator[bytes]:
    """Yield the lines of an answer as they come; a connection that breaks is its end."""
    import urllib3

    rest = b""
    try:
        for piece in answer.stream(64 * 1024, decode_content=False):
            *lines, rest = (rest + piece).split(b"\n")
            yield from lines
    except (OSError, urllib3.exceptions.HTTPError):
        return  # the caller looks whether there is more
    if rest:
        yield rest


def _load(package: Any, kubeconfig: str, context: str) -> tuple[str, Any]:
    """Find the cluster; returns the namespace by default and the client's settings. Raises `UnavailableError`."""
    settings = package.client.Configuration()
    config = package.config
    # Not left to the client, which reads the variable when it is imported.
    path = kubeconfig or os.environ.get("KUBECONFIG") or None
    try:
        config.load_kube_config(path, context or None, client_configuration=settings)
        contexts, active = config.list_kube_config_contexts(path)
    except config.ConfigException as error:
        if kubeconfig or context:
            raise UnavailableError(f"the kubeconfig cannot be used: {error}") from None
    else:
        chosen = next((each for each in contexts if each["name"] == context), active)
        return str(chosen["context"].get("namespace") or "default"), settings
    try:
        config.load_incluster_config(client_configuration=settings)
        return _OWN_NAMESPACE.read_text().strip() or "default", settings
    except (config.ConfigException, OSError):
        raise UnavailableError(
            "no Kubernetes cluster is known here: set KUBECONFIG to a kubeconfig file, or give -cfg kubeconfig=FILE"
        ) from None
