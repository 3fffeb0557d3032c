"""What README and docs show runs: each block alone, with what it needs of others; and each page from top to bottom, as somebody does it
in one shell that begins in an otherwise empty clone. A page that goes on from another one says so in a line above its first heading of
the second rank: "The commands here need `target.py` and `runs/target` of [Five minutes](index.md)".

Budgets are shortened here: stop criteria, episodes, trials and the seconds of `check-env`, and nothing else. A block is Python, YAML, or
commands; what is tagged `text` or `json` is output, or a picture of the code, and is not run.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
import runpy
import shutil
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from gymnasium import spaces

import raypid
from raypid.cli import main
from raypid.nn.catalog import build_spec
from raypid.nn.policy import save_policy
from raypid.plugins.registry import AGENTS, ALGORITHMS, ENVS, INTRINSIC_REWARDS, NETWORKS, REPLAYS
from raypid.run.best import BestPolicy
from raypid.settings import saved as saved_settings
from raypid.settings.config import ModelConfig
from raypid.types import Weights

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))]

NOT_HERE = {
    # a command of the documentation, as far as it is named here -> why no test runs it
    "make ": "sets up an environment, from the index of packages",
    "JaxModel": "JAX is no dependency: tests/algorithms/test_frameworks.py runs it where it is installed",
}


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    """Of the page, where the block begins."""
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def file(self) -> str:
        """The file that its first line names; "" if it names none."""
        named = re.match(r"# ([\w./-]+\.(?:py|yaml))\b", self.text)
        return named[1] if named else ""


def blocks_of(page: str) -> list[Block]:
    # a file that a page shows is run by tests/test_examples.py
    shown = re.compile(r"^<!-- (file|code): .*?^<!-- end: \1 -->$", re.DOTALL | re.MULTILINE)
    own = shown.sub(lambda found: "\n" * found[0].count("\n"), (ROOT / page).read_text())
    found = re.finditer(r"^```([^\n]*)\n(.*?)^```$", own, re.DOTALL | re.MULTILINE)
    return [Block(page, own.count("\n", 0, m.start()) + 1, m[1], m[2]) for m in found]


SHOWN = ("text", "json")
"""Output and parts of files: not run."""
BLOCKS = {page: blocks_of(page) for page in PAGES}
RUN = [block for page in PAGES for block in BLOCKS[page] if block.language not in SHOWN]
SLOW = (
    r"--num.workers|num_workers=|num_actors=|train -f|raypid tune|run_experiments\(|import tune|ray\.init|raypid init"
    r"|runs/lander|runs/search|HalfCheetah"
)
TRIALS = re.compile(r"run_experiments\(|import tune")
"""What takes a minute though it is Python."""
OWN_RAY = re.compile(r"ray\.init\(")
"""In this process the tests' Ray runs."""
MANY = re.compile(r"docs/(algorithms/(?!index)|coming-from/)")
"""Pages of like shape. The tests of every change only explain their commands."""
QUICK = [block for block in RUN if block.language == "yaml" or not re.search(SLOW, block.text)]
"""What needs neither Ray nor a project nor a search, and no long iteration."""
REGISTRIES = (AGENTS, ALGORITHMS, ENVS, INTRINSIC_REWARDS, NETWORKS, REPLAYS)
LONG = ("README.md", "docs/algorithms/index.md", "docs/experiments.md")
"""The budgets that these pages name are most of an hour in all."""


# -- shortening ---------------------------------------------------------------------------------------------------------------


def short_command(argv: list[str]) -> list[str]:
    """The same command with a stop after an iteration, one episode, two trials, a second."""
    argv = argv[:]

    def put(option: str, value: str, *, always: bool = False) -> None:
        if option in argv:
            argv[argv.index(option) + 1] = value
        elif always:
            argv.extend((option, value))

    if argv[0] == "train" and "-f" not in argv:
        resumed = "--resume" in argv and Path(argv[argv.index("--resume") + 1], "params.json").exists()
        drawn = "--evaluation-interval" in argv  # a curve needs two points
        stop = {"training_iteration": 4 if resumed else 2 if drawn else 1}
        put("--stop", json.dumps(stop), always=resumed or "--resume" not in argv)
        put("--timesteps", "500")
        put("--total-timesteps", "500")
        if resumed or "--resume" not in argv:
            put("--final-episodes", "1", always=True)
    if argv[0] == "tune":
        put("--trials", "2", always=True)
        put("--budget", "25s", always=True)
    if argv[0] == "eval":
        put("--episodes", "1", always=True)
    if argv[0] == "check-env":
        put("--seconds", "1", always=True)
    put("--at", "1500")
    return argv


SHORTER = (
    # of Python: pattern -> replacement
    (r"(\b(?:num_train_steps|eval_interval|save_interval|timesteps_total|timesteps|total_timesteps)\b[\"']?\s*[=:]\s*)[\d_]+", r"\g<1>300"),
    (r"(\.(?:train|fit)\()[\d_]+\)", r"\g<1>300)"),
    (r"(\btime_total_s[\"']?\s*[=:]\s*)[\d_]+", r"\g<1>0.2"),
    (r"(\bnum_eval_episodes=)\d+", r"\g<1>1"),
    (r"(\.eval\()\d+", r"\g<1>1"),
    (r"(\bstop=)([\d_]+)", lambda found: f"{found[1]}{int(found[2]) // 10}"),  # in proportion: a run that goes on needs more
    (r"(\.timesteps \+ )[\d_]+", r"\g<1>300"),
    (r"(\b(?:num_samples|training_iteration)[\"']?\s*[=:]\s*)\d+", r"\g<1>2"),
    (r"(\bmax_t=)\d+", r"\g<1>2"),
    (r"\brange\(10\)", "range(2)"),
)  # fmt: skip


def short_python(text: str) -> str:
    for pattern, replacement in SHORTER:
        text = re.sub(pattern, replacement, text)
    return text


def short_yaml(text: str) -> str:
    """An experiment, or several by name, each with a stop after two iterations and two trials."""
    experiments = yaml.safe_load(text)
    for one in [experiments] if "run" in experiments else experiments.values():
        if isinstance(one, dict) and "stop" in one:
            one["stop"] = {"timesteps_total": 600} if "population" in one else {"training_iteration": 2}
            one.update({key: 2 for key in ("num_samples", "repeat") if key in one})
            if "population" in one:
                one["population"] = {**one["population"], "interval": 300}
    return text.split("\n")[0] + "\n" + yaml.safe_dump(experiments)


# -- running ------------------------------------------------------------------------------------------------------------------

WORDS = ("raypid", "cd", "pytest", "make", "pip", "python", "ray", "docker", "git")
RECORD = "".join(f'{word}() {{ printf "%s\\0" {word} "$@" >&3; printf "\\n\\0" >&3; }}\n' for word in WORDS)


@functools.cache
def commands_in(text: str) -> list[list[str]]:
    """The commands that bash would run, with loops and quotes resolved; bash runs none of them. Nobody changes what is returned."""
    script = f'{RECORD}command_not_found_handle() {{ echo "unknown: $1" >&2; exit 1; }}\nset -e\n{text}'
    read, write = os.pipe()
    done = subprocess.run(
        ["bash", "-c", f"exec 3>&{write}\n{script}"], pass_fds=[write], capture_output=True, text=True
    )
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    assert done.returncode == 0, f"tag what is no command as text: {done.stderr}"
    return [command.rstrip("\0").split("\0") for command in said.split("\n\0") if command]


class Reader:
    """Somebody who does what a page says, in one shell: the folder in which a block ends is that in which the next one begins."""

    def __init__(self, folder: Path, *, short: bool) -> None:
        self.folder, self.short = folder, short
        self.registered = [{n: e for n, e in reg._entries.items() if reg.is_own(n)} for reg in REGISTRIES]
        self.makers: list[tuple[str, list[str]]] | None = None
        """Commands, each with its page, that may make a run when a command needs it; None: those of all pages."""
        shutil.copytree(ROOT / "examples", self.folder / "examples")
        for path in (self.folder / "examples" / "experiments").glob("*.yaml") if self.short else ():
            path.write_text(short_yaml(path.read_text()))

    def alone(self, block: Block) -> None:
        """Do a block, after all files of its page and the runs that it needs."""
        for file in [*BLOCKS[block.page], *self.needed(block.page)]:
            if file.file and not (self.folder / file.file).exists():
                self.write(file)
        self.does(block)

    def page(self, page: str, blocks: list[Block]) -> None:
        """Do these blocks of a page from top to bottom. Of those left out, which take longer, what a later one needs is made."""
        self.makers = []
        for block in self.needed(page):
            if block.file:
                self.write(block)
            for words in commands_in(block.text) if block.language == "" else ():
                if made_by(words) in needs_of(page)[1]:
                    self.run(block.page, words)
        for block in [block for block in RUN if block.page == page]:
            if block in blocks:
                self.does(block)
            elif block.file:
                self.write(block)
            elif block.language == "":
                self.makers += [(page, words) for words in commands_in(block.text)]
        assert Path.cwd() == self.folder, f"{page} ends in another folder than it began in: cd .."

    def needed(self, page: str) -> list[Block]:
        """The blocks of another page that show or make what this one says it needs."""
        other, names = needs_of(page)
        made = {
            block: {block.file} if block.language != "" else {made_by(words) for words in commands_in(block.text)}
            for block in BLOCKS.get(other, ())
            if block.language not in SHOWN
        }
        assert names <= set().union(*made.values()), f"{page} needs {names} of {other}, which does not make all of it"
        return [block for block, there in made.items() if there & names]

    def write(self, block: Block) -> Path:
        shorten = {"python": short_python, "yaml": short_yaml}[block.language] if self.short else str
        path = Path(block.file or f"block{block.line}.{'py' if block.language == 'python' else 'yaml'}")
        path.write_text(shorten(block.text))
        return path

    def does(self, block: Block) -> None:
        if block.language in ("python", "yaml"):
            self.prepare(block.page, set(re.findall(r"runs/[\w./-]*\w", block.text)))
            path = self.write(block)
            if block.language == "yaml" and "run:" in block.text:
                assert self.command(["train", "-f", path.name, "--dry-run"]) == 0
            elif block.language == "python" and (
                OWN_RAY.search(block.text) or "the file above" in block.text and "num_actors=" in block.text
            ):
                done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True)
                assert done.returncode == 0, done.stderr
            elif block.language == "python":
                self.clean()
                sys.path.insert(0, str(Path.cwd()))
                try:
                    runpy.run_path(str(path), run_name="__main__")
                except Exception as error:
                    pytest.fail(f"{block}: {type(error).__name__}: {error}", pytrace=False)
                finally:
                    sys.path.remove(str(Path.cwd()))
            return
        for words in commands_in(block.text):
            if not any(named in " ".join(words) for named in NOT_HERE):
                self.run(block.page, words)

    def run(self, page: str, words: list[str]) -> None:
        name, *argv = words
        if name == "cd":
            os.chdir(argv[0])
        elif name == "pytest":
            done = subprocess.run(
                [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], capture_output=True, text=True
            )
            assert done.returncode == 0, done.stdout
        else:
            assert name == "raypid", f"{words}: a test cannot run this; name it in NOT_HERE"
            self.prepare(page, {word for word in argv if re.match(r"runs/\w|both$", word)} - {made_by(words)})
            code = self.command(short_command(argv) if self.short else argv)
            assert code == 0, f"raypid {' '.join(argv)} ended with {code}"
            if self.short and argv[0] == "tune" and made_by(words):
                settle(Path(made_by(words)))

    def prepare(self, page: str, folders: set[str]) -> None:
        """Make the runs that a block needs, as `makers` do."""
        for folder in sorted(folders):
            if any(Path(folder).parents[i].joinpath("params.json").exists() for i in range(len(Path(folder).parents))):
                continue
            for place, maker in makers_of(page, folder, self.makers) if not Path(folder).exists() else ():
                if not Path(made_by(maker)).exists():
                    self.run(place, maker)

    def command(self, argv: list[str]) -> int:
        module = any(re.fullmatch(r"[a-z]\w*:[A-Z]\w*", word) for word in argv)
        trials = argv[0] == "tune" or "-f" in argv and "--dry-run" not in argv
        if Path.cwd() != self.folder or trials or "--num-workers" in argv and module:
            # what is loaded of a project stays, and Ray's workers look for modules where the process that started Ray did
            return subprocess.run([sys.executable, "-m", "raypid", *argv]).returncode
        self.clean()
        path = sys.path[:]
        try:
            return main(argv)
        except SystemExit as ended:
            return int(ended.code or 0)
        finally:
            sys.path[:] = path

    def clean(self) -> None:
        """Forget the modules of the folder, and what they registered: each block is a process of its own."""
        for registry, entries in zip(REGISTRIES, self.registered, strict=True):
            registry._entries = dict(entries)
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None) or "").startswith(str(self.folder)):
                del sys.modules[name]


def settle(search: Path) -> None:
    """Write what a search found, if its two short trials have not found anything."""
    if not (search / saved_settings.BEST).exists():
        entry = {"algorithm": "PPO", "env": "CartPole-v1", "settings": {"lr": 1e-3}}
        (search / saved_settings.BEST).write_text(json.dumps(entry))


def made_by(words: list[str]) -> str:
    """The folder that a command writes to; "" if it names none."""
    return words[words.index("--out") + 1] if "--out" in words else ""


def needs_of(page: str) -> tuple[str, set[str]]:
    """(another page, what of it) that the top of a page says it needs: files and folders of runs."""
    top = (ROOT / page).read_text().split("\n## ")[0]
    found = re.search(r"^The commands here need (.+?) of \[[^]]+\]\(([\w./-]+)", top, re.MULTILINE)
    return (f"docs/{found[2]}", set(re.findall("`(.+?)`", found[1]))) if found else ("", set())


def makers_of(page: str, folder: str, commands: list[tuple[str, list[str]]] | None) -> Iterator[tuple[str, list[str]]]:
    """Those of the commands whose --out is `folder`, or above or below it; None: of all pages, this one first."""
    if commands is None:
        texts = [(p, block.text) for p in (page, *PAGES) for block in BLOCKS[p] if block.language == ""]
        commands = [(p, words) for p, text in texts if "--out" in text for words in commands_in(text)]
    for place, words in commands:
        out = Path(made_by(words))
        if made_by(words) and (out.is_relative_to(folder) or Path(folder).is_relative_to(out)):
            yield place, words


# -- tests --------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAYPID_DATA", str(tmp_path / ".data"))
    before = [dict(registry._entries) for registry in REGISTRIES]  # of other tests
    there = Reader(tmp_path, short=True)
    there.clean()
    play = BestPolicy.play

    def play_few(best: BestPolicy, agent: Any, num_episodes: int, *more: Any) -> None:
        play(best, agent, min(num_episodes, 2) if there.short else num_episodes, *more)

    monkeypatch.setattr(BestPolicy, "play", play_few)
    yield there
    there.clean()
    for registry, entries in zip(REGISTRIES, before, strict=True):
        registry._entries = entries


def test_every_block_says_what_it_is() -> None:
    for block in [block for page in PAGES for block in BLOCKS[page]]:
        assert block.language in ("", "python", "yaml", *SHOWN), f"{block}: {block.language}"
        if block.language == "":
            assert commands_in(block.text), f"{block} holds no command: tag it as text"


@pytest.mark.parametrize("named", NOT_HERE)
def test_what_is_left_out_is_in_the_documentation(named: str) -> None:
    commands = [" ".join(words) for block in RUN if block.language == "" for words in commands_in(block.text)]
    assert any(named in text for text in [*commands, *(block.text for block in RUN)])


@pytest.mark.parametrize("page", PAGES)
def test_no_two_commands_of_a_page_write_to_one_folder(page: str) -> None:
    commands = [words for b in BLOCKS[page] if b.language == "" for words in commands_in(b.text)]
    folders = [words[words.index("--out") + 1] for words in commands if "--out" in words and "train" in words]
    assert sorted(folders) == sorted(set(folders))


@pytest.mark.parametrize("page", PAGES)
def test_a_page_reads_no_run_that_it_makes_only_later(page: str) -> None:
    commands = [words for b in BLOCKS[page] if b.language == "" for words in commands_in(b.text)]
    for i, words in enumerate(commands):
        later = {made_by(others) for others in commands[i + 1 :]} - {made_by(others) for others in commands[: i + 1]}
        assert not later & set(words), f"{' '.join(words)}: the page makes it below"


@pytest.mark.parametrize("block", [b for b in QUICK if b.language != ""], ids=str)
def test_code_runs_alone(block: Block, reader: Reader) -> None:
    reader.alone(block)


@pytest.mark.parametrize("page", [p for p in PAGES if MANY.match(p)])
def test_a_command_is_one(page: str, reader: Reader, capfd: pytest.CaptureFixture[str]) -> None:
    for words in [w for b in RUN if b.page == page and b.language == "" for w in commands_in(b.text)]:
        if words[:2] == ["raypid", "train"]:
            code = reader.command([*words[1:], "--explain"])
            assert code == 0, f"{' '.join(words)}: {capfd.readouterr().err}"


def how_slow(block: Block) -> pytest.MarkDecorator:
    """What calls raypid on Ray from Python, the CI runs too: a setting may be valid and its result another."""
    return pytest.mark.ci_slow if block.language == "python" and not TRIALS.search(block.text) else pytest.mark.slow


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "block", [pytest.param(b, marks=how_slow(b), id=str(b)) for b in RUN if b.language == "" or b not in QUICK]
)
def test_a_block_runs_alone(block: Block, reader: Reader, ray_session: Any) -> None:
    reader.alone(block)


@pytest.mark.ci_slow
@pytest.mark.parametrize(
    "page", [p for p in PAGES if not MANY.match(p) and any(b.page == p and b.language == "" for b in QUICK)]
)
def test_what_is_quick_of_a_page_runs_in_order(page: str, reader: Reader) -> None:
    reader.page(page, QUICK)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs_in_order(page: str, reader: Reader, ray_session: Any) -> None:
    reader.page(page, RUN)


@pytest.mark.slow
@pytest.mark.timeout(4200)
@pytest.mark.parametrize("page", [pytest.param(p, marks=[pytest.mark.long] if p in LONG else []) for p in PAGES])
def test_a_page_runs_as_it_stands(page: str, reader: Reader, ray_session: Any) -> None:
    """Unshortened."""
    reader.short = False
    reader.page(page, RUN)


ACTIONS: dict[str, spaces.Space[Any]] = {
    "Discrete": spaces.Discrete(3, start=1),
    "MultiDiscrete": spaces.MultiDiscrete([2, 3]),
    "Box": spaces.Box(-1, 1, (2,)),
    "one number": spaces.Box(-1, 1, ()),
    "Dict": spaces.Dict(turn=spaces.Discrete(2), push=spaces.Box(0, 1, (2,))),
    "Tuple": spaces.Tuple([spaces.MultiBinary(2), spaces.Dict(k=spaces.Discrete(2))]),
}


@pytest.mark.parametrize("program", ["docs/run-folder.md", "examples/web_handler.py"])
@pytest.mark.parametrize("kind", ACTIONS)
def test_the_servers_answer_with_actions_of_every_kind(kind: str, program: str, reader: Reader) -> None:
    spec = build_spec(spaces.Box(-9, 9, (1,)), ACTIONS[kind], ModelConfig())
    flat = np.random.default_rng(0).normal(size=sum(math.prod(shape) for _, shape in spec.mlp_table(1)))
    save_policy(Path("runs/target"), spec, Weights(1, flat.astype(np.float32), spec.mlp_table(1)))
    if program.endswith(".py"):
        server = runpy.run_path(str(ROOT / program))["server"]("runs/target", port=0)
    else:
        (block,) = (block for block in BLOCKS[program] if block.file == "serve.py")
        server = ThreadingHTTPServer(("127.0.0.1", 0), runpy.run_path(str(reader.write(block)))["Handler"])
    threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()

    def post(path: str, **body: object) -> Any:
        url = f"http://127.0.0.1:{server.server_port}{path}"
        return json.load(urllib.request.urlopen(url, json.dumps(body).encode()))

    if program.endswith(".py"):
        action = post("/", observation=[-0.5])["action"]
    else:
        action = post("/act", **post("/begin"), obs=[-0.5])["action"]
    server.shutdown()
    server.server_close()
    assert action == json.loads(json.dumps(raypid.load_policy("runs/target").act([-0.5]), default=np.ndarray.tolist))
