"""`make docs` refuses what is wrong with a page, and says what it is and where."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("mkdocs")
ROOT = Path(__file__).parents[1]
FENCE = "```"


@pytest.fixture(scope="module")
def checks() -> Any:
    """The module docs/checks.py, whose `problems` the build calls for every page."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs"))
        import checks  # type: ignore[import-not-found]

        yield checks


def block(language: str, text: str) -> str:
    return f"\n{FENCE}{language}\n{text}\n{FENCE}\n"


DEFECTS = {
    # what is planted -> what is said of it
    "A name: `raypid.Nosuch`.": "`raypid.Nosuch` does not exist",
    "A name of a module: `raypid.roles.nosuch`.": "`raypid.roles.nosuch` does not exist",
    "A file: `raypid/algorithms/nosuch.py`.": "`raypid/algorithms/nosuch.py` does not exist",
    "A file: `nosuch.json`.": "the file nosuch.json does not exist",
    "A command: `python benchmarks/nosuch.py`.": "the file benchmarks/nosuch.py does not exist",
    "A target: `make nosuch`.": "`make nosuch` does not exist",
    "A flag: `--nosuch 3`.": "the flag `--nosuch` does not exist",
    "A command: `raypid nosuch`.": "there is no command `raypid nosuch`",
    "A command: `raypid train --run PPO --nosuch 3`.": "`raypid train` has no flag --nosuch, in: raypid train --run PPO --nosuch 3",
    "A flag of another algorithm: `raypid train --run PPO --buffer-size 3`.": "`raypid train` has no flag --buffer-size",
    "A setting: `batch_sise`.": "`batch_sise` is no setting, metric or name of the code",
    "A setting: `fragment_lenght 64`.": "`fragment_lenght` is no setting, metric or name of the code",
    "A metric: `learner/no_such`.": "`no_such` is no setting, metric or name of the code",
    block("", "raypid train --run PPO --nosuch 3"): "`raypid train` has no flag --nosuch",
    block("", "raypid train --run PPO \\\n    --nosuch 3"): "`raypid train` has no flag --nosuch",
    block("text", "raypid eval runs/first --nosuch"): "`raypid eval` has no flag --nosuch",
    block("", "raypid nosuch"): "there is no command `raypid nosuch`",
    block("", "python examples/nosuch.py"): "the file examples/nosuch.py does not exist",
    block("python", "def f(:"): "a block of code cannot be parsed",
    block("python", "from raypid import Nosuch"): "`raypid.Nosuch`, which a block of code imports, does not exist",
    block("yaml", "a: [1"): "a block of code cannot be parsed",
    "\n<!-- setting: PPO -->\n": "<!-- setting: PPO --> is no marker of a table",
}


@pytest.mark.parametrize("planted", DEFECTS, ids=lambda text: text.strip("`\n").replace("\n", " "))
def test_a_defect_is_refused(checks: Any, planted: str) -> None:
    said = checks.problems("roles.md", f"# Roles\n\n{planted}\n")
    assert len(said) == 1 and DEFECTS[planted] in said[0]


@pytest.mark.parametrize(
    "sound",
    [
        "`raypid.PPO`, `raypid.config.Config.lr`, `raypid/algorithms/ppo.py`, `params.json`, `--num-workers 8`, `make docs`",
        "`batch_size 64`, `learner/policy_loss`, `model.memory_size`, `my_model`, `my_package.envs:make_target`",
        "`raypid train --run SAC --buffer-size 100`, `raypid train --run ppo --env CartPole-v1 --num_workers 2`",
        block("text", "anything goes --here (unless it is a command\n  raypid does this"),
        block("python", "class Walk:\n    def __init__(self, my_goal, far_goal): ...")
        + block("", "raypid train --run PPO --env walk:Walk --far-goal 3")
        + "`far_goal`",
    ],
)
def test_what_exists_passes(checks: Any, sound: str) -> None:
    assert checks.problems("roles.md", f"# Roles\n\n{sound}\n") == []


def test_other_libraries_names_stand_on_their_pages(checks: Any) -> None:
    text = "`--nosuch`, `batch_sise`, `nosuch.py`"
    assert checks.problems("coming-from/rllib.md", text) == []
    assert checks.problems("coming-from/rllib.md", "`raypid.Nosuch`") == ["`raypid.Nosuch` does not exist"]


def test_a_page_explains_the_metrics_that_its_algorithm_reports(checks: Any) -> None:
    text = (ROOT / "docs/algorithms/ppo.md").read_text()
    assert checks.problems("algorithms/ppo.md", text) == []
    row = next(line for line in text.splitlines() if line.startswith("| `learner/entropy` |"))
    unexplained = ["the metric learner/entropy is not explained under Metrics"]
    assert checks.problems("algorithms/ppo.md", text.replace(row, "")) == unexplained
    assert checks.problems("algorithms/ppo.md", text.replace(row, "| `learner/entropy` | | |")) == unexplained
    more = text.replace(row, f"{row}\n| `learner/staleness` | mean of the values | |")
    assert checks.problems("algorithms/ppo.md", more) == ["the metric learner/staleness is never reported"]
    elsewhere = text.replace("## Metrics", "## Numbers")
    assert len(checks.problems("algorithms/ppo.md", elsewhere)) == len(checks.tables.metrics("PPO"))


def test_a_page_has_the_table_of_settings(checks: Any) -> None:
    text = (ROOT / "docs/algorithms/ppo.md").read_text()
    marker = "<!-- settings: PPO -->"
    said = checks.problems("algorithms/ppo.md", text.replace(marker, ""))
    assert said == [f"the line {marker}, which becomes the table of settings, is missing"]
    assert checks.problems("algorithms/nosuch.md", "# Nosuch") == ["there is no algorithm 'nosuch'"]


def test_every_algorithm_has_a_page(checks: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert checks.without_page() == []
    shutil.copytree(ROOT / "docs/algorithms", tmp_path / "algorithms")
    (tmp_path / "algorithms" / "sac.md").unlink()
    monkeypatch.setattr(checks, "DOCS", tmp_path)
    assert checks.without_page() == ["SAC"]


def test_a_setting_needs_a_docstring(checks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = checks.tables.field_docs

    def lacking(cls: type) -> dict[str, str]:
        return {**whole(cls), "clip": " "}

    monkeypatch.setattr(checks.tables, "field_docs", lacking)
    with pytest.raises(ValueError, match=r"PPOConfig\.clip has no docstring"):
        checks.tables.table("settings", "PPO")
    with pytest.raises(ValueError, match="'NOSUCH' is no algorithm and no table"):
        checks.tables.table("settings", "NOSUCH")


def test_links_of_files_that_are_no_pages(checks: Any, tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# Other\n\n## A `code` heading\n")
    page = tmp_path / "README.md"
    page.write_text(
        "# Top\n[a](other.md) [b](other.md#a-code-heading) [c](#top) [d](https://example.com/x#y)\n"
        "`[e](in-code.md)`\n[f](nosuch.md) [g](other.md#nosuch)\n"
    )
    assert checks.dead_links(page) == [
        "the link nosuch.md is dead: there is no such file",
        "the link other.md#nosuch is dead: other.md has no such heading",
    ]


@pytest.mark.ci_slow
@pytest.mark.timeout(170)
def test_the_build_fails_and_names_every_defect(tmp_path: Path) -> None:
    """The command of `make docs`, in a copy with three pages and with one defect of each kind."""
    for folder in ("raypid", "docs"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in (
        "tests",
        "benchmarks",
        "examples",
        "CONTRIBUTING.md",
        "SUPPORT.md",
        "SECURITY.md",
        "Makefile",
        "pyproject.toml",
    ):
        (tmp_path / name).symlink_to(ROOT / name)
    ppo, index, setting = (
        tmp_path / path for path in ("docs/algorithms/ppo.md", "docs/index.md", "raypid/algorithms/ppo.py")
    )
    roles = tmp_path / "docs" / "roles.md"
    for page in sorted((tmp_path / "docs").rglob("*.md")):
        if page not in (ppo, index, roles):
            page.write_text(f"# {page.stem}\n")
    for page in sorted((tmp_path / "docs/algorithms").glob("*.md")):
        if page not in (ppo, tmp_path / "docs/algorithms/index.md"):
            page.unlink()
    setting.write_text(re.sub(r'\n    """linear: clip falls .*?"""', "", setting.read_text()))
    ppo.write_text(
        re.sub(r"\| `learner/kl` .*\n", "| `learner/nosuch` | a metric that is not there | |\n", ppo.read_text())
    )
    index.write_text("# Start\n\n[one](#nosuch-here) [two](algorithms/ppo.md#nosuch-there)\n")
    planted = [
        text for text in DEFECTS if "--buffer-size" not in text
    ]  # whose flags are unknown once a docstring is missing
    roles.write_text(
        "# Roles\n\n[three](nosuch.md) [four](../raypid/nosuch.py) [five](index.md#nosuch-start)\n\n"
        + "\n".join(planted)
    )
    (tmp_path / "README.md").write_text("# raypid\n\n[six](docs/nosuch.md)\n")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n[seven](docs/nosuch-either.md)\n")
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    site["nav"] = [{"Start": "index.md"}, {"PPO": "algorithms/ppo.md"}, {"Roles": "roles.md"}]
    site["validation"]["nav"] = {"omitted_files": "ignore"}
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(site))

    recipe = re.search(r"^docs:.*\n\t(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    command = recipe[1].replace("$(BIN)/mkdocs", f"{sys.executable} -m mkdocs")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=env, capture_output=True, text=True)

    said = done.stdout + done.stderr
    assert done.returncode != 0, said
    lines = [line for line in said.splitlines() if line.startswith("WARNING")]
    expected = [
        ("index.md", "#nosuch-here"),
        ("index.md", "#nosuch-there"),
        ("roles.md", "'nosuch.md'"),
        ("roles.md", "'../raypid/nosuch.py'"),
        ("roles.md", "#nosuch-start"),
        ("README.md", "the link docs/nosuch.md is dead"),
        ("CHANGELOG.md", "the link docs/nosuch-either.md is dead"),
        ("algorithms/ppo.md", "learner/kl is not explained"),
        ("algorithms/ppo.md", "learner/nosuch is never reported"),
        ("algorithms/ppo.md", "PPOConfig.clip_schedule has no docstring"),
        ("algorithms/sac.md", "the page of SAC is missing"),
        *(("roles.md", DEFECTS[text]) for text in planted),
    ]
    missing = [(page, text) for page, text in expected if not any(page in line and text in line for line in lines)]
    assert not missing, said
