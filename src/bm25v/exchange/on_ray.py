"""Encodes parts of a folder of bags on a cluster, by Ray Data.

Actors on all nodes read the images and encode them; this process writes the files, so the files are
all that an interrupted run needs to continue. Ray gives the parts of a node that has died to
another one; a part arrives once. Nodes must have bm25v, and the images and the vocabulary at the
same paths.
"""

import importlib.util
import io
import logging
import os
import secrets
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any

from bm25v.display import first_line
from bm25v.errors import Bm25vError, ClusterError, MissingExtra
from bm25v.exchange.encode import EncodeParts, Part, encode_here
from bm25v.privacy import silence_libraries
from bm25v.progress import Progress, no_progress
from bm25v.store.meta import Meta, check_same_bags, describe_vocabulary, load_vocabulary
from bm25v.threads import available_cpus

Content = tuple[int, bytes, str]  # number, content and error of a part

_CPUS_PER_ACTOR = 4  # or as many as a smaller node has


def encode_on(address: str, meta: Meta, cpus_per_actor: int | None) -> EncodeParts:
    """Return what encodes parts on a cluster: `local`, `auto`, or the address of one."""
    require_ray()

    def encode_parts(parts: Sequence[Part], progress: Progress) -> Generator[tuple[int, bytes]]:
        if not parts:
            return
        sizes = {part.number: len(part.paths) for part in parts}
        total = sum(sizes.values())
        # Ray prints what happens to nodes as if the program did.
        with redirect_stdout(io.StringIO()), _connect(address), _reporting():
            run = _run_from_client if address.startswith("ray://") else _run
            done = 0
            progress("encoding", done, total)
            for number, content, error in run(parts, meta, cpus_per_actor):
                if error:
                    raise ClusterError(f"a node cannot encode images: {error}")
                if number not in sizes:  # computed twice
                    continue
                yield number, content
                done += sizes.pop(number)
                progress("encoding", done, total)
        if sizes:
            raise ClusterError(f"{len(sizes):,} parts were lost: run the same command again")

    return encode_parts


def require_ray() -> None:
    if importlib.util.find_spec("ray") is None:
        raise MissingExtra("encoding on Ray", "ray")


@contextmanager
def _connect(address: str) -> Iterator[None]:
    """Be connected to a cluster; a local one is started, and stopped at the end."""
    is_local = address == "local"
    silence_libraries()
    if is_local and not {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN"} & os.environ.keys():
        # Else Ray makes a token for all clusters of this user, in the home folder.
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # of what is not Python
    import ray

    with tempfile.TemporaryDirectory(prefix="bm25v-", ignore_cleanup_errors=True) as scratch:
        own = {"num_cpus": available_cpus(), "include_dashboard": False, "_temp_dir": scratch}
        try:
            with _no_stderr():  # it reports the level of its log
                ray.init(
                    address=address,
                    log_to_driver=False,
                    configure_logging=False,
                    **(own if is_local else {}),
                )
        except (ConnectionError, RuntimeError, ValueError, AssertionError) as error:
            raise ClusterError(
                f"no Ray cluster at {address} ({first_line(str(error))}): start one with `ray "
                "start --head`, or use --ray local"
            ) from error
        try:
            yield
        finally:
            ray.shutdown()


@contextmanager
def _no_stderr() -> Iterator[None]:
    """Hide what compiled code of this process writes to standard error."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@contextmanager
def _reporting() -> Iterator[None]:
    import ray

    try:
        yield
    except ray.exceptions.RayError as error:
        raise ClusterError(
            f"encoding on Ray failed ({first_line(str(error))}); what was complete is kept: run "
            "the same command again"
        ) from error


def _run(parts: Sequence[Part], meta: Meta, cpus_per_actor: int | None) -> Iterator[Content]:
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    n_actors, resources = _plan_actors(ray.nodes(), cpus_per_actor)
    items = [
        {"number": part.number, "paths": [os.fsencode(path) for path in part.paths]}
        for part in parts
    ]
    contents = ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
        _Encoder,
        fn_constructor_kwargs={"meta": meta, "workers": int(resources["num_cpus"])},
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=n_actors, initial_size=n_actors),
        **resources,
    )
    for batch in contents.iter_batches(batch_size=1, prefetch_batches=0):
        columns = (batch[name].tolist() for name in ("number", "content", "error"))
        yield from zip(*columns, strict=True)


def _run_from_client(
    parts: Sequence[Part], meta: Meta, cpus_per_actor: int | None
) -> Iterator[Content]:
    """Yield the same through a client of a cluster, where Ray Data does not run: a node runs it."""
    import ray

    coordinator = ray.remote(num_cpus=0)(_Coordinator).remote(parts, meta, cpus_per_actor)
    return iter(lambda: ray.get(coordinator.next_content.remote()), None)


class _Coordinator:
    """Runs on a node, and returns one content after the other."""

    def __init__(self, parts: Sequence[Part], meta: Meta, cpus_per_actor: int | None) -> None:
        self._contents = _run(parts, meta, cpus_per_actor)

    def next_content(self) -> Content | None:
        return next(self._contents, None)


def _plan_actors(
    nodes: Sequence[dict[str, Any]], cpus_per_actor: int | None
) -> tuple[int, dict[str, float]]:
    """Return how many actors the living nodes have, and what each of them takes.

    >>> nodes = [{"Alive": True, "Resources": {"CPU": 6.0}}, {"Alive": True, "Resources": {}}]
    >>> _plan_actors(nodes, None), _plan_actors(nodes, 2)
    ((1, {'num_cpus': 4}), (3, {'num_cpus': 2}))
    >>> _plan_actors([{"Alive": True, "Resources": {"CPU": 8.0, "GPU": 2.0}}], None)
    (2, {'num_cpus': 4, 'num_gpus': 1})
    """
    living = [node["Resources"] for node in nodes if node["Alive"]]
    cpus = [int(resources.get("CPU", 0)) for resources in living]
    n_gpus = [int(resources.get("GPU", 0)) for resources in living]
    usable = [n for n in cpus if n > 0]
    if not usable:
        raise ClusterError("the Ray cluster has no CPUs: add nodes")
    size = cpus_per_actor or min(_CPUS_PER_ACTOR, *usable)
    if any(n_gpus):
        return sum(n_gpus), {"num_cpus": size, "num_gpus": 1}
    return max(1, sum(n // size for n in cpus)), {"num_cpus": size}


class _Encoder:
    def __init__(self, meta: Meta, workers: int) -> None:
        self._meta = meta
        self._workers = workers
        self._encode: EncodeParts | None = None

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """Return the contents of the files of some parts, or why this node has none."""
        numbers = batch["number"].tolist()
        columns: dict[str, list[Any]] = {"number": numbers, "content": [], "error": []}
        for number, paths in zip(numbers, batch["paths"], strict=True):
            content, error = b"", ""
            try:
                content = self._encode_part(Part(number, [os.fsdecode(path) for path in paths]))
            except Bm25vError as problem:  # such as a vocabulary that is not on this node
                error = str(problem)
            columns["content"].append(content)
            columns["error"].append(error)
        return columns

    def _encode_part(self, part: Part) -> bytes:
        if self._encode is None:
            vocabulary = load_vocabulary(self._meta, self._meta.vocabulary, location="this run")
            own = describe_vocabulary(vocabulary, self._meta.parameters)
            check_same_bags(own, self._meta, f"vocabulary {vocabulary.source}", "this run")
            self._encode = encode_here(vocabulary, self._workers)
        ((_, content),) = self._encode([part], no_progress)
        return content
