"""Nothing leaves the machine, and no file is written that was not asked for, by any library."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from bm25v.client import Client
from bm25v.gallery import Gallery
from bm25v.privacy import cache_folder
from bm25v.store.local.writer import Writer
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.folder import SETTINGS
from tests.conftest import make_image
from tests.http_server import wait_until
from tests.test_own_backbones import CONVOLUTION, convolution, write

REPOSITORY = Path(__file__).parent.parent
STRACE = shutil.which("strace")

# Runs commands in one process. Python reports opened files and sockets to the hook; what compiled
# libraries do is seen by strace alone.
PROGRAM = """
import json, os, sys
seen = set()
WATCHED = ("open", "os.mkdir", "os.rename", "sqlite3.connect", "tempfile.mkdtemp")

def watch(event, args):
    if event.startswith("socket.") and event != "socket.gethostname":  # it asks the system alone
        seen.add(("network", event))
    elif event in WATCHED and isinstance(args[0], (str, bytes)):
        mode = args[2] if event == "open" else os.O_RDWR
        kind = "write" if (mode or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) else "read"
        seen.add((kind, os.path.abspath(os.fsdecode(args[0]))))

sys.addaudithook(watch)
from bm25v.cli import main
codes = []
for sys.argv in json.loads(sys.argv[1]):
    try:
        main()
        codes.append(0)
    except SystemExit as stop:
        codes.append(stop.code)
print("seen", json.dumps([codes, sorted(seen)]))
"""

# What every program on this system reads; and where Python, its packages and numba's code are.
SYSTEM = ("/dev", "/etc", "/lib", "/lib64", "/opt", "/proc", "/run", "/sys", "/usr", "/var")
INSTALLED = {
    *(os.path.realpath(path) for path in (sys.prefix, sys.base_prefix, REPOSITORY / "src")),
    *(os.path.abspath(path) for path in (sys.prefix, sys.base_prefix, *filter(None, sys.path))),
    *(sysconfig.get_path(kind) for kind in ("stdlib", "platlib", "purelib")),
}
SCRATCH_DEVICES = ("/dev/null", "/dev/shm", "/dev/tty")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder with twenty images, a text, and the ONNX model of a backbone."""
    work = tmp_path / "work"
    (work / "photos").mkdir(parents=True)
    (tmp_path / "temporary").mkdir()
    for seed in range(20):
        make_image(seed).save(work / "photos" / f"{seed}.png")
    (work / "photos" / "note.png").write_text("not an image")
    write(work / "net", convolution(), CONVOLUTION)
    return work


def commands(backbone: str) -> list[list[str]]:
    """Return commands that train, index, search, explain and draw."""
    photo = "photos/1.png"
    train = ["train", "photos", "-o", "vocabulary", "--backbone", backbone, "--expansion", "4"]
    lines = [
        [*train, "--k", "2", "--epochs", "1"],
        ["index", "photos", "--vocabulary", "vocabulary"],
        ["search", photo],
        ["name", "cat", photo],
        ["search", "--text", "cat"],
        ["explain", photo, "photos/2.png", "-o", "explanation.html"],
        ["explain", photo, "photos/2.png", "-o", "explanation.png"],
        ["words", "list"],
        ["duplicates"],
        ["info"],
        ["verify"],
        ["bags", "export", "-o", "bags"],
        ["evaluate", "zipf", "-o", "zipf.png"],
    ]
    return [["bm25v", *line] for line in lines]


def run_program(
    program: str,
    *words: str,
    work: Path,
    home: str | None,
    before: tuple[str, ...] = (),
    extra: Mapping[str, str] = MappingProxyType({}),
) -> subprocess.CompletedProcess[str]:
    """Run a Python program in the folder, with a home folder, or with none."""
    kept = ("PATH", "PYTHONPATH", "LANG", "LD_LIBRARY_PATH", "SYSTEMROOT")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    environment |= {"PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(work.parent / "temporary")}
    environment |= {"HOME": home, **extra} if home is not None else extra
    command = [*before, sys.executable, "-W", "error", "-c", program, *words]
    return subprocess.run(
        command, cwd=work, env=environment, capture_output=True, text=True, check=False
    )


def trace(
    lines: list[list[str]], work: Path, calls: str = "execve"
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run commands, and return also their calls of the network, and those of other kinds."""
    log, home = work.parent / "calls", str(work.parent / "home")
    which = f"trace=%network,{calls}"
    before = (str(STRACE), "-f", "--seccomp-bpf", "-qq", "-y", "-o", str(log), "-e", which)
    done = run_program(PROGRAM, json.dumps(lines), work=work, home=home, before=before)
    if not log.exists() or "ptrace" in done.stderr:
        pytest.skip("this system does not allow to trace a process")
    return done, log.read_text(errors="replace").splitlines()


def find_sockets(lines: list[str]) -> list[str]:
    """Return the calls of a log that make a socket, but for those that stay on this machine."""
    return [line for line in lines if re.search(r"\bsocket\((?!AF_UNIX)", line)]


def is_below(path: str, folders: "set[str] | tuple[str, ...]") -> bool:
    return any(path == folder or path.startswith(folder + os.sep) for folder in folders)


def check_files(work: Path, read: set[str], written: set[str]) -> None:
    """Expect files only where they belong; `work` has the gallery and all that was asked for."""
    temporary = work.parent / "temporary"
    assert list(temporary.rglob("*")) == []
    own = {str(work), str(temporary), str(work.parent / "home" / ".cache" / "bm25v")}
    parents = {str(folder) for path in own for folder in (Path(path), *Path(path).parents)}
    bytecode = {path for path in written if f"{os.sep}__pycache__" in path}  # numba's code
    assert {p for p in bytecode if not is_below(p, INSTALLED)} == set()
    strange = {path for path in written - bytecode - parents if not is_below(path, own)}
    assert {path for path in strange if not is_below(path, SCRATCH_DEVICES)} == set()
    allowed = own | INSTALLED | set(SYSTEM)
    assert {path for path in read - parents if not is_below(path, allowed)} == set()


@pytest.mark.parametrize("backbone", ["toy", "net/spec.toml"])
def test_commands_open_no_socket_and_no_strange_file(work: Path, backbone: str) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    pytest.importorskip("pyarrow")
    (work.parent / "home").mkdir()
    words = json.dumps(commands(backbone))
    done = run_program(PROGRAM, words, work=work, home=str(work.parent / "home"))
    assert done.returncode == 0, done.stderr
    codes, seen = json.loads(done.stdout.rpartition("seen ")[2])
    assert codes == [0] * len(codes), done.stderr
    kinds: dict[str, set[str]] = {"network": set(), "read": set(), "write": set()}
    for kind, what in seen:
        kinds[kind].add(what)
    assert kinds["network"] == set()
    check_files(work, kinds["read"], kinds["write"])


@pytest.mark.skipif(STRACE is None, reason="strace is not installed")
def test_compiled_libraries_open_no_socket_and_no_strange_file(work: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    pytest.importorskip("pyarrow")
    home = work.parent / "home"
    home.mkdir()
    done, lines = trace(
        commands("net/spec.toml"), work, "open,openat,creat,mkdir,mkdirat,rename,renameat,renameat2"
    )
    assert done.returncode == 0, done.stderr
    opened = [line for line in lines if re.search(r"\b(open|creat|mkdir|rename)\w*\(", line)]
    assert len(opened) > 1000  # it did trace
    assert find_sockets(lines) == []
    read: set[str] = set()
    written: set[str] = set()
    for line in opened:
        if re.search(r"= -1 E\w+", line):
            continue
        is_write = re.search(r"O_WRONLY|O_RDWR|O_CREAT|creat\(|mkdir|rename", line)
        folder = re.search(r"\((?:AT_FDCWD|\d+)<(.*?)>", line)
        for path in re.findall(r'"(.*?)"', line):
            whole = os.path.normpath(os.path.join(folder[1] if folder else work, path))
            (written if is_write else read).add(whole)
    check_files(work, read, written)
    assert {str(path.relative_to(home)) for path in home.rglob("*")} <= {
        ".cache",
        ".cache/bm25v",
        *(str(path.relative_to(home)) for path in (home / ".cache" / "bm25v").rglob("*")),
    }


@pytest.mark.skipif(STRACE is None, reason="strace is not installed")
@pytest.mark.parametrize("named", ["stranger/model", "hf://stranger/words"])
def test_what_a_gallery_names_is_not_downloaded(work: Path, named: str) -> None:
    pytest.importorskip("transformers")
    vocabulary = work / "vocabulary"
    Vocabulary.load("toy").save(vocabulary)
    with Gallery.create(work / "gallery.bm25v", vocabulary=vocabulary) as gallery:
        gallery.add(work / "photos")
    if named.startswith("hf://"):
        with Writer(work / "gallery.bm25v") as writer:
            writer.catalog.set_vocabulary(named)
            writer.n_pending += 1
            writer.commit()
    else:
        settings = json.loads((vocabulary / SETTINGS).read_text(encoding="utf-8"))
        settings["backbone"]["name"] = named
        (vocabulary / SETTINGS).write_text(json.dumps(settings), encoding="utf-8")
    lines = [
        ["search", "photos/1.png"],
        ["search", "--text", "cat"],
        ["explain", "photos/1.png", "photos/2.png"],
        ["index", "photos"],
    ]
    done, calls = trace([["bm25v", *line] for line in lines], work)
    codes, seen = json.loads(done.stdout.rpartition("seen ")[2])
    assert len(calls) > 0  # it did trace
    assert find_sockets(calls) == []
    assert [what for kind, what in seen if kind == "network"] == []
    assert codes == [1] * len(lines), done.stderr
    assert done.stderr.count("\n") == len(lines)
    assert done.stderr.count(f"to download it: bm25v models get {named}") == len(lines)


@pytest.mark.skipif(STRACE is None, reason="strace is not installed")
def test_a_server_has_one_socket_and_connects_nowhere(
    gallery: Gallery, photos: Path, tmp_path: Path
) -> None:
    pytest.importorskip("fastapi")
    log = tmp_path / "calls"
    traced = [str(STRACE), "-D", "-f", "--seccomp-bpf", "-o", str(log), "-e", "trace=%network"]
    command = ["serve", "-g", str(gallery.path), "--port", "0", "--writable"]
    with subprocess.Popen(
        [*traced, sys.executable, "-m", "bm25v", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            url = re.search(r"http://[\d.:]+", server.stdout.readline())
            if url is None:
                pytest.skip("this system does not allow to trace a process")
            with Client(url[0]) as client:
                hit = client.search(photos / "3.png")[0]
                assert client.explain(photos / "3.png", hit)["words"]
                assert client.add({"new": photos / "3.png"}).added == 1
        finally:
            server.send_signal(signal.SIGINT)
            server.communicate(timeout=60)
    end = re.compile(rf"^{server.pid} +\+\+\+ exited with 0", re.MULTILINE)
    wait_until(lambda: end.search(log.read_text(errors="replace")))
    lines = log.read_text(errors="replace").splitlines()
    assert len(find_sockets(lines)) == 1
    assert [line for line in lines if re.search(r"\bconnect\(.*AF_INET", line)] == []


@pytest.mark.skipif(os.name == "nt", reason="Windows keeps the home folder elsewhere")
@pytest.mark.parametrize("home", ["/dev/null/home", "/proc", None], ids=["missing", "fixed", "no"])
def test_commands_work_without_a_home_folder_and_without_warnings(
    work: Path, home: str | None
) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("pyarrow")
    lines = [line for line in commands("toy") if line[1] != "train"]
    words = json.dumps(lines).replace('"vocabulary"]', '"toy"]')
    done = run_program(PROGRAM, words, work=work, home=home)
    codes, _ = json.loads(done.stdout.rpartition("seen ")[2])
    assert codes == [0] * len(codes), done.stderr
    unreadable = "unreadable: photos/note.png: is not an image\n"
    assert re.sub(r"is not an image.*", "is not an image", done.stderr) == unreadable


def test_libraries_are_silenced_while_they_are_imported(work: Path) -> None:
    program = (
        "from bm25v.backbones import load_backbone\nload_backbone('net/spec.toml').load_weights()\n"
    )
    done = run_program(program, work=work, home=str(work))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert {*(work / ".cache").rglob("*")} <= {work / ".cache" / "bm25v"}


# A program with an environment, filters of warnings and a number of BLAS threads of its own.
HOST = """
import os, sys, threading, warnings
import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

def settings():
    blas = {info["num_threads"] for info in threadpool_info() if info["user_api"] == "blas"}
    return dict(os.environ), list(warnings.filters), blas

warnings.simplefilter("default", ResourceWarning)
threadpool_limits(2, user_api="blas")
before = settings()

def watch():
    while not finished.wait(0.002):
        seen.append(settings()[1:])

seen, finished = [], threading.Event()
watching = threading.Thread(target=watch, daemon=True)
watching.start()
import bm25v
assert settings() == before, "import"
photos = sorted(os.path.join("photos", name) for name in os.listdir("photos"))
with bm25v.Gallery.create("gallery", vocabulary=sys.argv[1]) as gallery:
    report = gallery.add("photos")
    assert (report.added, len(report.failed)) == (20, 1), report
    assert len(gallery.search(photos[0])) > 0
    assert all(len(results) for results in gallery.search_many(photos[:8]))
    assert gallery.duplicates() == []
finished.set()
watching.join()
assert len(seen) > 10
assert all(values == before[1:] for values in seen), "meanwhile"
assert settings() == before, "in the end"
"""


@pytest.mark.parametrize("vocabulary", ["toy", "default"])
def test_a_program_keeps_its_settings(work: Path, vocabulary: str) -> None:
    kept = {"BM25V_MODELS": os.environ["BM25V_MODELS"]} if "BM25V_MODELS" in os.environ else {}
    done = run_program(HOST, vocabulary, work=work, home=os.environ.get("HOME"), extra=kept)
    assert (done.returncode, done.stderr) == (0, "")


def test_telemetry_that_the_host_program_started_is_named_once(work: Path) -> None:
    program = (
        "import logging, onnxruntime\n"
        "from bm25v.backbones import load_backbone\n"
        "logging.basicConfig()\n"
        "load_backbone('net/spec.toml').load_weights()\n"
        "load_backbone('net/spec.toml').load_weights()\n"
    )
    done = run_program(program, work=work, home=str(work))
    assert done.returncode == 0
    assert (
        done.stderr.count("onnxruntime was imported before bm25v needed it, with its telemetry on")
        == 1
    )


def test_a_user_without_a_home_folder_is_told_what_to_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import platformdirs

    from bm25v.errors import InvalidOption

    monkeypatch.setattr(platformdirs, "user_cache_path", lambda name: Path("~/.cache") / name)
    with pytest.raises(InvalidOption, match="set XDG_CACHE_HOME"):
        cache_folder()


def test_the_tests_that_the_security_page_names_exist() -> None:
    text = (REPOSITORY / "SECURITY.md").read_text(encoding="utf-8")
    named = set(re.findall(r"tests/\w+\.py", text))
    assert len(named) > 5
    assert {name for name in named if not (REPOSITORY / name).is_file()} == set()


def test_constraints_pin_every_direct_dependency() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    needed = {re.match(r"[\w-]+", line)[0] for group in groups for line in group}  # type: ignore[index]
    pinned = set(
        re.findall(r"^([\w-]+)==", (REPOSITORY / "constraints.txt").read_text(), re.MULTILINE)
    )
    assert needed - {"bm25v", "pip"} - pinned == set()
