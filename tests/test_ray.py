"""Encoding on Ray: the files of one process, also if a node dies. Skipped where Ray is missing."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bm25v.errors import ClusterError
from bm25v.exchange.on_ray import _plan_actors
from bm25v.extras import install_command
from tests import test_cli
from tests.conftest import make_image
from tests.test_cli import Run, failed

run = test_cli.run

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="needs Ray: make ray"
)
SECONDS = 60  # of a test, at most; Ray itself takes up to 20 to start on two slow cores


def run_python(script: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a script in another process: Ray leaves threads behind, and changes the logging."""
    environment = os.environ | {"PYTHONWARNINGS": "ignore"}
    environment |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(
        [sys.executable, "-c", script, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


COMMAND = "import sys; from bm25v.cli import main; main()"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.parquet")}


@needs_ray
@pytest.mark.timeout(2 * SECONDS)
def test_a_local_cluster_writes_the_files_of_one_process_and_continues(
    run: Run, photos: Path, tmp_path: Path
) -> None:
    (photos / "torn.jpg").write_bytes(b"\xff\xd8\xff\xe0 and no more")
    make_image(51).save(photos / "caf\udce9.png")
    settings = ("--vocabulary", "toy", "--images-per-file", "3")
    assert run("bags", "encode", photos, "-o", "here", *settings).code == 0
    assert run("bags", "encode", photos, "-o", "there", *settings).code == 0
    missing = tmp_path / "there" / "part-000002.parquet"
    missing.unlink()
    done = run_python(
        COMMAND, tmp_path, "bags", "encode", "photos", "-o", "there", "--ray", "local", *settings
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("3 encoded, 10 unchanged, 1 unreadable"), done.stdout
    (line,) = done.stderr.splitlines()  # nothing of Ray itself
    assert line.startswith("unreadable: photos/torn.jpg")
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
    assert len(contents(tmp_path / "here")) == 5


KILLED_NODE = """
import json, os, sys
from bm25v.privacy import silence_libraries

silence_libraries()  # before Ray
from ray.cluster_utils import Cluster
from pathlib import Path
from bm25v.exchange.encode import encode_folder
from bm25v.exchange.on_ray import encode_on
from bm25v.store.meta import describe_vocabulary
from bm25v.vocabulary import Vocabulary

assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
health = {"period_ms": 1000, "timeout_ms": 3000, "failure_threshold": 3, "initial_delay_ms": 0}
system = {f"health_check_{name}": value for name, value in health.items()}
head = {"num_cpus": 0, "include_dashboard": False, "_system_config": system}
cluster = Cluster(initialize_head=True, head_node_args=head)
nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
killed = []

def progress(stage, done, total):
    if done and not killed:
        killed.append(done)
        cluster.remove_node(nodes[1], allow_graceful=False)

meta = describe_vocabulary(Vocabulary.load("toy"))
report = encode_folder(
    ["large"], Path("there"), meta, encode_on(cluster.address, meta, None),
    exclude=(), images_per_file=2, retry=False, progress=progress,
)
print(json.dumps([killed, report.encoded, report.unchanged, len(report.failed)]))
cluster.shutdown()
"""


@needs_ray
@pytest.mark.timeout(2 * SECONDS)
def test_a_node_that_dies_loses_nothing(run: Run, tmp_path: Path) -> None:
    """Twelve parts, each of some tenths of a second: the node dies after the first one."""
    (tmp_path / "large").mkdir()
    make_image(1, side=2500).save(tmp_path / "large" / "00.png")
    for number in range(1, 24):
        os.link(tmp_path / "large" / "00.png", tmp_path / "large" / f"{number:02}.png")
    (tmp_path / "large" / "torn.jpg").write_bytes(b"\xff\xd8\xff\xe0 and no more")
    settings = ("--vocabulary", "toy", "--images-per-file", 2)
    assert run("bags", "encode", "large", "-o", "here", *settings).code == 0
    done = run_python(KILLED_NODE, tmp_path)
    assert done.returncode == 0, done.stderr
    killed, *counts = json.loads(done.stdout)  # and nothing of Ray itself
    assert killed and killed[0] < 12
    assert counts == [24, 0, 1]
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
    assert len(contents(tmp_path / "here")) == 13


@needs_ray
def test_a_cluster_that_is_not_there_is_one_line(tmp_path: Path, photos: Path) -> None:
    words = ("bags", "encode", "photos", "-o", "bags", "--vocabulary", "toy", "--ray", "auto")
    done = run_python(COMMAND, tmp_path, *words)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: no Ray cluster at auto")
    assert "--ray local" in line


def test_actors_get_cpus_and_gpus_of_living_nodes() -> None:
    nodes = [
        {"Alive": True, "Resources": {"CPU": 16.0}},
        {"Alive": True, "Resources": {"CPU": 2.0}},
        {"Alive": False, "Resources": {"CPU": 64.0}},
        {"Alive": True, "Resources": {}},
    ]
    assert _plan_actors(nodes, None) == (9, {"num_cpus": 2})
    assert _plan_actors(nodes, 8) == (2, {"num_cpus": 8})
    with pytest.raises(ClusterError, match="no CPUs"):
        _plan_actors(nodes[2:], None)


def test_options_of_the_other_way_are_refused(run: Run, photos: Path) -> None:
    command = ("bags", "encode", photos, "-o", "bags", "--vocabulary", "toy")
    failed(run(*command, "--cpus-per-actor", 2), 2, "--workers")
    failed(run(*command, "--ray", "local", "--workers", 2), 2, "--cpus-per-actor")


def test_without_ray_the_extra_is_named(tmp_path: Path, photos: Path) -> None:
    script = f"import importlib.util as u; u.find_spec = lambda name: None; {COMMAND}"
    words = ("bags", "encode", "photos", "-o", "bags", "--vocabulary", "toy", "--ray", "local")
    done = run_python(script, tmp_path, *words)
    assert done.returncode == 1
    assert done.stderr == f"error: encoding on Ray needs an extra: {install_command('ray')}\n"
