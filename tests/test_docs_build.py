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
UNBUILT = ("README.md", "CONTRIBUTING.md", "SUPPORT.md", "SECURITY.md")
"""Files outside docs/ that are checked as pages are."""
COPIED = {"conftest.py", "test_documentation.py", "chaos", "patience.py", "processes.py"}
"""What of tests/ `make docs` needs."""


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
    "A command: `raypid train --run SAC --nosuch 3`.": "`raypid train` has no flag --nosuch, in: raypid train --run SAC --nosuch 3",
    "A flag of another algorithm: `raypid train --run SAC --clip 0.3`.": "`raypid train` has no flag --clip",
    "An algorithm: `raypid train --run Nosuch`.": "Unknown algorithm 'Nosuch'",
    "Another's name of a setting: `entropy_coeff`.": "`entropy_coeff` is no name of raypid: it is called `entropy_coef`",
    "Nearly a setting: `vectoriser`.": "`vectoriser` is no name of raypid: is `vectorizer` meant?",
    "A list: `raypid list nosuch`.": "invalid choice: 'nosuch'",
    "A role: `roles.Nosuch`.": "`raypid.roles.Nosuch` does not exist",
    "A method: `agent.nosuch(1)`.": "`Agent.nosuch` does not exist",
    "A method of a class: `raypid.PPO.nosuch()`.": "`raypid.PPO.nosuch` does not exist",
    "A setting in a call: `raypid.PPO(env, nosuch=1)`.": "PPO(...) is refused: Unknown setting 'nosuch'",
    "A setting: `batch_sise`.": "`batch_sise` is no setting, metric or name of the code",
    "A setting: `fragment_lenght 64`.": "`fragment_lenght` is no setting, metric or name of the code",
    'A value: `optimizer="nosuch"`.': "optimizer takes one of 'adam', 'rmsprop', not 'nosuch'",
    "A part of the network: `model.hiden`.": "`model.hiden` is no name of raypid: is `hidden` meant?",
    "A class: `NosuchConfig`.": "`NosuchConfig` is no setting, metric or name of the code",
    "A method of an object: `rollout.colect(weights)`.": "`Rollout.colect` does not exist",
    "A method of an object: `learner.metrixs`.": "`Learner.metrixs` does not exist",
    "A field of an object: `outcome.reson`.": "`Outcome.reson` does not exist",
    "A field of an object: `report.num_stepz`.": "`num_stepz` is no setting, metric or name of the code",
    "A field of an object: `self.config.batch_sise`.": "`batch_sise` is no setting, metric or name of the code",
    "A command: `raypid trian`.": "there is no command `raypid trian`",
    "A command: `python -m raypid trian`.": "there is no command `raypid trian`",
    '<a href="nosuch.md">A link</a>': "the link nosuch.md is checked by nobody: write it in Markdown",
    "An image: <img width=9 src='nosuch.png'>": "the link nosuch.png is checked by nobody: write it in Markdown",
    "A metric: `learner/nosuch`.": "the metric learner/nosuch is never reported",
    "A metric: `lost/nosuch`.": "the metric lost/nosuch is never reported",
    "A metric: `evaluation/nosuch`.": "the metric evaluation/nosuch is never reported",
    block("", "raypid train --run SAC --nosuch 3"): "`raypid train` has no flag --nosuch",
    block("", "raypid train --run SAC \\\n    --nosuch 3"): "`raypid train` has no flag --nosuch",
    block("", "raypid train --env CartPole-v1 --nosuch 3"): "`raypid train` has no flag --nosuch",
    block("", "A=1 nice ./raypid nosuch && cd runs"): "there is no command `raypid nosuch`",
    block("", "raypid list envs && raypid nosuch"): "there is no command `raypid nosuch`",
    block("text", "$ raypid nosuch"): "there is no command `raypid nosuch`",
    block("text", "for lr in 1e-3 1e-4; do\n  raypid trian --lr $lr\ndone"): "there is no command `raypid trian`",
    block("", "raypid train --run SAC --vectorizer nosuch"): "vectorizer takes",
    block("", "raypid train --run SAC --config '{\"nosuch\": 3}'"): "Unknown setting 'nosuch'",
    block("", "raypid train --run SAC --stop '{\"learner/nosuch\": 3}'"): "Unknown stop criterion 'learner/nosuch'",
    block("", "raypid train --run SAC --env Nosuch-v1"): "Gymnasium has no environment 'Nosuch-v1'",
    block("", "raypid train --run PPO --model.network nosuch"): "Unknown network 'nosuch'",
    block("", "raypid train --run PPO --gamma 2"): "gamma must lie in [0, 1]",
    block("", "raypid tune --run SAC --only nosuch,lr"): "Unknown setting 'nosuch'",
    block("", 'raypid tune --run SAC --space \'{"nosuch": {"choice": [1]}}\''): "Unknown setting 'nosuch'",
    block("", "make nosuch"): "`make nosuch` does not exist",
    block("", "raypid eval"): "the following arguments are required",
    block("text", "raypid eval runs/first --nosuch"): "`raypid eval` has no flag --nosuch",
    block("", "raypid nosuch"): "there is no command `raypid nosuch`",
    block("", "python examples/nosuch.py"): "the file examples/nosuch.py does not exist",
    block("python", "def f(:"): "a block of code cannot be parsed",
    block("python", "from raypid import Nosuch"): "`raypid.Nosuch` does not exist",
    block("{.python}", "from raypid import Nosuch"): "`raypid.Nosuch` does not exist",
    block("python", "import raypid.nosuch"): "`raypid.nosuch` does not exist",
    block("python", "import raypid\n\nraypid.nosuch()"): "`raypid.nosuch` does not exist",
    block("python", "from raypid import roles\n\nroles.Nosuch()"): "`raypid.roles.Nosuch` does not exist",
    block(
        "python", "import raypid\n\nwith raypid.PPO('X') as agent:\n    agent.nosuch()"
    ): "`PPO.nosuch` does not exist",
    block("python", "import raypid\n\nraypid.PPO('X', nosuch=1)"): "PPO(...) is refused: Unknown setting 'nosuch'",
    block("python", "import raypid\n\nraypid.PPO('X', config={'nosuch': 1})"): "Unknown setting 'nosuch'",
    block("python", "import raypid\n\nraypid.PPO('X', model={'nosuch': 1})"): "Unknown setting 'model.nosuch'",
    block("python", "import raypid\n\ngiven = dict(nosuch=1)\nraypid.SAC('X', **given)"): "Unknown setting 'nosuch'",
    block(
        "python", "import raypid\n\nc = raypid.PPO.DEFAULT_CONFIG.copy()\nc['nosuch'] = 1\nraypid.PPO('X', c)"
    ): "Unknown setting",
    block("python", "import raypid\n\nraypid.train('PPO', 'X', buffer_size=9)"): "Unknown setting 'buffer_size'",
    block("python", "import raypid\n\nraypid.Agent('Nosuch', 'X')"): "Unknown algorithm 'Nosuch'",
    block("python", "import raypid\n\nraypid.setup('SAC', 'X', lr='high')"): "lr takes a number",
    block("python", "import raypid\n\nraypid.IMPALAAgent('X', num_actor=2)"): "IMPALAAgent(...) is refused",
    block("python", "import raypid\n\nraypid.PPO('X').fit(step=9)"): "Agent.fit(...) is refused: it takes no 'step'",
    block("python", "import raypid\n\nraypid.PPO('X').fit({'nosuch': 9})"): "Unknown stop criterion 'nosuch'",
    block("python", "import raypid\n\nraypid.PPO('Nosuch-v1')"): "Gymnasium has no environment 'Nosuch-v1'",
    block("python", "import raypid\n\nraypid.PPO('X', model={'network': 'nosuch'})"): "Unknown network 'nosuch'",
    block("python", "import raypid\n\nprint(raypid.PPO('X').train()['nosuch'])"): "the result has no 'nosuch'",
    block("python", "import raypid\n\nprint(raypid.PPO('X').eval(9)['nosuch'])"): "the result has no 'nosuch'",
    block(
        "python",
        "import raypid\n\n\nclass Mine(raypid.Callbacks):\n    def on_nosuch(self): ...",
    ): "`Callbacks.on_nosuch` does not exist",
    block("python", "from raypid.tune import trainable\n\ntrainable('Nosuch')"): "Unknown algorithm 'Nosuch'",
    block("python", "print(nosuch)"): "`nosuch`, which a block of code uses, is nowhere on the page",
    block("python", "from raypid import roles\n\nroles.Learner()"): "missing a required argument: 'setup'",
    block("python", "result = {}\nprint(result['learner/nosuch'])"): "the metric learner/nosuch is never reported",
    block(
        "python",
        "from raypid.tune import grid_search, run_experiments\n\n"
        "run_experiments({'a': {'run': 'PPO', 'env': 'X', 'config': {'nosuch': grid_search([1])}}})",
    ): "Unknown setting 'nosuch'",
    block("yaml", "a: [1"): "a block of code cannot be parsed",
    block("yaml", "run: PPO\nenv: CartPole-v1\nconfig: {nosuch: 1}"): "raypid refuses a run file: ",
    block("yaml", "run: Nosuch\nenv: CartPole-v1"): "Unknown algorithm 'Nosuch'",
    block("yaml", "one:\n  run: PPO\n  env: CartPole-v1\n  stop: {nosuch: 1}"): "Unknown stop criterion 'nosuch'",
    block("yaml", "nosuch: 1"): "Unknown setting 'nosuch'",
    block("json", '"a": [1'): "a block of code cannot be parsed",
    block(
        "bash", "raypid nosuch"
    ): "a block in 'bash' is checked by nobody: write one of python, yaml, json, text, or no language",
    block("console", "$ raypid nosuch"): "a block in 'console' is checked by nobody",
    f"\n1. Indented:\n\n    {FENCE}python\n    def f(:\n    {FENCE}\n": "a block of code is checked by nobody",
    "\n~~~\nraypid nosuch\n~~~\n": "a block of code is checked by nobody",
    "\n<!-- setting: PPO -->\n": "<!-- setting: PPO --> is no marker of a table",
}


@pytest.mark.parametrize("planted", DEFECTS, ids=lambda text: text.strip("`\n").replace("\n", " "))
def test_a_defect_is_refused(checks: Any, planted: str) -> None:
    said = checks.problems("roles.md", f"# Roles\n\n{planted}\n")
    assert len(said) == 1 and DEFECTS[planted] in said[0]


@pytest.mark.parametrize(
    "sound",
    [
        "`raypid.PPO`, `raypid.settings.config.Config.lr`, `raypid/algorithms/ppo.py`, `params.json`, `--num-workers 8`, `make docs`",
        "`rollout.collect(server.pull(), done)`, `report.num_steps`, `policy.json`, `np.uint8`, `self.config.lr`, `shard.add.remote(i, data)`",
        "`batch_size 64`, `learner/policy_loss`, `model.memory_size`, `my_model`, `my_package.envs:make_target`",
        "`raypid train --run SAC --buffer-size 100`, `raypid train --run ppo --env CartPole-v1 --num_workers 2`",
        "`raypid eval`, `raypid tune --trials N --budget TIME`, `raypid train --run ... --config FILE`, `raypid train --stop`",
        '`agent.fit(stop=N)`, `raypid.PPO(env)`, `raypid.train("PPO", env, stop=N)`, `raypid.setup("SAC", env, **settings)`',
        "`evaluation/episode_reward_mean`, `evaluation/...`, `lost/shards`, `custom/anything`, `learner/NAME`, `parameter_server/version`",
        block("", "for lr in 1e-3 1e-4; do raypid train --run PPO --env CartPole-v1 --lr $lr --stop 10k; done"),
        block("", "raypid train --env_name gym_env --agent_name default_agent --model_name ppo --env_id CartPole-v1"),
        block("yaml", "run: PPO\nenv: CartPole-v1\nconfig: {lr: {grid_search: [1e-3, 1e-4]}, num_sgd_iter: 4}"),
        block("yaml", "lr: 1e-3\nmodel: {hidden: [32]}"),
        block(
            "python",
            "import raypid\n\nrate, sizes = max(1, 2), list()\nraypid.PPO('X', lr=rate, model={'hidden': sizes}).eval(num_eval_episodes=3)",
        )
        + block(
            "python",
            "with raypid.Agent.from_checkpoint('runs/a', lr=1e-4) as agent:\n    agent.train(num_train_steps=9)",
        ),
        block(
            "python",
            "import raypid\n\n\n@raypid.register_algorithm('Mine')\nclass Mine(Exception):\n    def loss(self):\n        return {'gap': 0}\n\n\n"
            "print(raypid.Mine('X', gap=1).train()['learner/gap'])",
        )
        + "`raypid train --run Mine`",
        block(
            "text",
            "anything goes --here (unless it is a command\n  raypid does this\naction  0 to 1; raypid scales to the bounds",
        ),
        block("python", "class Walk:\n    def __init__(self, my_goal, far_goal): ...")
        + block("", "raypid train --run PPO --env walk:Walk --far-goal 3")
        + "`far_goal`",
    ],
)
def test_what_exists_passes(checks: Any, sound: str) -> None:
    assert checks.problems("roles.md", f"# Roles\n\n{sound}\n") == []


def test_other_libraries_names_stand_on_their_pages(checks: Any) -> None:
    text = "`--nosuch`, `batch_sise`, `nosuch.py`, `learner/nosuch`, `entropy_coeff`"
    assert checks.problems("coming-from/rllib.md", text) == []
    assert checks.problems("coming-from/rllib.md", "`raypid.Nosuch`") == ["`raypid.Nosuch` does not exist"]
    table = "| there | here | note |\n|---|---|---|\n| {0} | `lr` | {0} |\n"
    assert checks.problems("coming-from/rllib.md", table.format(text)) == []


@pytest.mark.parametrize(
    ("here", "said"),
    [
        ("`batch_sise`", "`batch_sise` is no setting, metric or name of the code"),
        ("`clipp`", "`clipp` is no setting, metric or name of the code"),
        ("`entropy_coeff`", "`entropy_coeff` is no name of raypid: it is called `entropy_coef`"),
        ("`--num-worker`", "the flag `--num-worker` does not exist"),
        ("`raypid nosuch`", "there is no command `raypid nosuch`"),
        ("`raypid.Nosuch`", "`raypid.Nosuch` does not exist"),
        ("`learner/nosuch`", "the metric learner/nosuch is never reported"),
        ("`NosuchConfig`", "`NosuchConfig` is no setting, metric or name of the code"),
        ("`raypid.PPO(nosuch=1)`", "PPO(...) is refused: Unknown setting 'nosuch'"),
    ],
)
def test_what_is_here_exists_beside_what_is_there(checks: Any, here: str, said: str) -> None:
    found = checks.problems("coming-from/rllib.md", f"| there | here | note |\n|---|---|---|\n| `a` | {here} | `b` |\n")
    assert len(found) == 1 and said in found[0]


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


def test_flags_stay_on_one_line(checks: Any) -> None:
    """In code, and nowhere within a tag."""
    import hooks  # type: ignore[import-not-found]

    html = (
        '<p>--run <code>a --num-workers 2</code></p><pre><code title="--x"><span>--lr=1</span> a--b -- 3</code></pre>'
    )
    flag = '<span class="flag">{}</span>'.format
    assert hooks.on_page_content(html, None, None, None) == (
        f"<p>--run <code>a {flag('--num-workers')} 2</code></p>"
        f'<pre><code title="--x"><span>{flag("--lr")}=1</span> a--b -- 3</code></pre>'
    )


def test_every_algorithm_has_a_page(checks: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert checks.without_page() == []
    shutil.copytree(ROOT / "docs/algorithms", tmp_path / "algorithms")
    (tmp_path / "algorithms" / "sac.md").unlink()
    monkeypatch.setattr(checks, "DOCS", tmp_path)
    assert checks.without_page() == ["SAC"]


def test_tables_are_written_below_their_markers(checks: Any) -> None:
    """Old ones are replaced, once and for all; what blocks of code show stays."""
    import make_pages  # type: ignore[import-not-found]

    shown = block("text", "<!-- settings: PPO -->")
    text = f"# PPO\n\n<!-- settings: PPO -->\n| old |\n\n<!-- end: settings -->\n{shown}\n<!-- reference: raypid.load_policy -->\n"
    made = make_pages.written(text)
    table = checks.tables.table("settings", "PPO")
    sentence = "[`raypid.load_policy`](../../raypid/nn/policy.py): Load the policy of a run folder, a checkpoint, or a policy folder."
    assert made == (
        f"# PPO\n\n<!-- settings: PPO -->\n{table}\n\n<!-- end: settings -->\n{shown}\n"
        f"<!-- reference: raypid.load_policy -->\n{sentence}\n\n<!-- end: reference -->\n"
    )
    assert make_pages.written(made) == made
    assert checks.tables.table("reference", "raypid.load_policy") == "::: raypid.load_policy"


def test_files_are_written_below_their_markers(checks: Any) -> None:
    """Code as a block, and Markdown as it is. What they say is no part of the page's own text."""
    import make_pages

    text = "# Roles\n\n<!-- file: examples/sweep.py -->\n\n<!-- file: benchmarks/results/tutorial.md -->\n"
    made = make_pages.written(text)
    code = (ROOT / "examples/sweep.py").read_text()
    table = (ROOT / "benchmarks/results/tutorial.md").read_text()
    assert f"<!-- file: examples/sweep.py -->\n{FENCE}python\n{code}{FENCE}\n\n<!-- end: file -->\n" in made
    assert f"<!-- file: benchmarks/results/tutorial.md -->\n{table}\n<!-- end: file -->\n" in made
    assert make_pages.written(made) == made
    assert checks.problems("roles.md", made.replace("import raypid", "import raypid.nosuch")) == []


def test_functions_are_written_below_their_markers(checks: Any) -> None:
    """As they stand in the code, without their docstrings; a method is shown without its class."""
    import make_pages

    marker = "<!-- code: raypid/roles/pace.py Pace.may_collect -->"
    made = make_pages.written(f"# Roles\n\n{marker}\n")
    code = "def may_collect(self) -> bool:\n    return self.owed < self.min_updates + self.slack\n"
    assert made == f"# Roles\n\n{marker}\n{FENCE}python\n{code}{FENCE}\n\n<!-- end: code -->\n"
    assert make_pages.written(made) == made and checks.problems("roles.md", made) == []
    for name, why in {
        "raypid/roles/pace.py nosuch": "has no function nosuch",
        "raypid/nosuch.py sync": "does not exist",
    }.items():
        with pytest.raises(checks.tables.MarkerError, match=why):
            make_pages.written(f"<!-- code: {name} -->\n")


def test_a_marker_that_stands_for_nothing_is_one_line(
    checks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import make_pages

    monkeypatch.setattr(make_pages, "DOCS", tmp_path / "docs")
    monkeypatch.setattr(sys, "argv", ["make_pages.py"])
    (page := tmp_path / "docs" / "page.md").parent.mkdir()
    page.write_text("# A page\n\n<!-- file: examples/nosuch.py -->\n")
    assert make_pages.main() == 1
    said = "docs/page.md:3: the file examples/nosuch.py, which this page shows, does not exist.\n"
    assert capsys.readouterr().err == said and page.read_text().endswith("nosuch.py -->\n")


def test_a_page_says_what_its_command_should_reach(
    checks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = checks.tables
    rows = [
        "system,version,algorithm,env,settings,seed,step,seconds,metric,value",
        *(
            f"raypid,0,PPO,CartPole-v1,default@0,{seed},{step},{seconds},{metric},{value}"
            for seed, step, seconds, solved in (
                (1000, 14_018, 1.0, 1),
                (1001, 22_172, 1.39, 1),
                (1002, 81_286, 4.61, 1),
            )
            for metric, value in (("return of 10 episodes", 480), ("solved", solved))
        ),
    ]
    (tmp_path / "runs.csv").write_text("\n".join(rows) + "\n")
    monkeypatch.setattr(tables, "RUNS", tmp_path / "runs.csv")
    said = tables.expected("PPO")
    assert "a return of 475 after about 22,000 steps and 1.4 s (median of 3 seeds" in said
    assert "81,000 steps and 4.6 s. 2 of 3 seeds arrived within the 50,000 steps" in said
    assert tables.expected("ES").startswith(
        "The defaults were not measured on CartPole-v1. With `--tuned`, 3 of 3 seeds reached"
    )
    monkeypatch.setattr(tables, "TUNED", {})
    assert tables.expected("ES") == ""


def test_a_setting_needs_a_docstring(
    checks: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line names it and its file, however many pages have it."""
    import make_pages

    whole = checks.tables.field_docs
    monkeypatch.setattr(checks.tables, "field_docs", lambda cls: {**whole(cls), "clip": " ", "seed": ""})
    with pytest.raises(ValueError, match=r"raypid/algorithms/ppo\.py: PPOConfig\.clip has no docstring"):
        checks.tables.table("settings", "PPO")
    with pytest.raises(ValueError, match="'NOSUCH' is no algorithm and no table"):
        checks.tables.table("settings", "NOSUCH")
    monkeypatch.setattr(sys, "argv", ["make_pages.py", "--check"])
    assert make_pages.main() == 1
    said = capsys.readouterr()
    assert said.out == "" and [line.partition(" has no docstring")[0] for line in said.err.splitlines()] == [
        f"docs/algorithms/{page}.md:{line_of(page, marker)}: raypid/{setting}"
        for page, marker, setting in (
            ("appo", "settings: APPO", "algorithms/impala.py: APPOConfig.clip"),
            ("index", "settings: shared", "settings/config.py: Config.seed"),
            ("ppo", "settings: PPO", "algorithms/ppo.py: PPOConfig.clip"),
        )
    ]


def line_of(page: str, marker: str) -> int:
    """The line, from 1, of a marker on an algorithm's page."""
    return (ROOT / f"docs/algorithms/{page}.md").read_text().splitlines().index(f"<!-- {marker} -->") + 1


def test_each_error_of_a_docstring_has_a_line(checks: Any) -> None:
    """Else the reference shows the second as part of what is said of the first."""
    error = r"^ +[A-Z]\w+(?:, \w+)*: .*[.;] [A-Z]\w+: "
    code = {path: path.read_text() for path in sorted((ROOT / "raypid").rglob("*.py"))}
    sections = [
        (path, part)
        for path, text in code.items()
        for part in re.findall(r"^ +Raises:\n((?: +\S.*\n)+)", text, re.MULTILINE)
    ]
    assert len(sections) > 200
    assert [(path, part) for path, part in sections if re.search(error, part, re.MULTILINE)] == []


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
    """The command of `make site`, in a copy with three pages and with one defect of each kind."""
    for folder in ("raypid", "docs"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in (
        "tests",
        "benchmarks",
        "examples",
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
    setting.write_text(re.sub(r'\n    """How clip changes.*?"""', "", setting.read_text()))
    ppo.write_text(
        re.sub(r"\| `learner/kl` .*\n", "| `learner/nosuch` | a metric that is not there | |\n", ppo.read_text())
    )
    index.write_text("# Start\n\n[one](#nosuch-here) [two](algorithms/ppo.md#nosuch-there)\n")
    # without PPO, of which a docstring is missing; and without code, whose names would be the page's own
    planted = [text for text in DEFECTS if not re.search(rf"PPO|~~~|{FENCE}\S", text)]
    planted += [block("python", "def f(:"), block("bash", "raypid list")]
    roles.write_text(
        "# Roles\n\n<!-- file: examples/nosuch.py -->\n\n[three](nosuch.md) [four](../raypid/nosuch.py) [five](index.md#nosuch-start)\n\n"
        + "\n".join(planted)
    )
    for name in UNBUILT:
        (tmp_path / name).write_text("# A title\n\n[six](docs/nosuch.md) `raypid nosuch`\n")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n[seven](docs/nosuch-either.md)\n")
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    site["nav"] = [{"Start": "index.md"}, {"PPO": "algorithms/ppo.md"}, {"Roles": "roles.md"}]
    site["validation"]["nav"] = {"omitted_files": "ignore"}
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(site))

    recipe = re.search(r"^site:.*\n\t(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
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
        ("roles.md:3", "the file examples/nosuch.py, which this page shows, does not exist"),
        ("roles.md", "'nosuch.md'"),
        ("roles.md", "'../raypid/nosuch.py'"),
        ("roles.md", "#nosuch-start"),
        *((name, "the link docs/nosuch.md is dead") for name in UNBUILT),
        ("CHANGELOG.md", "the link docs/nosuch-either.md is dead"),
        ("algorithms/ppo.md", "learner/kl is not explained"),
        ("algorithms/ppo.md", "learner/nosuch is never reported"),
        ("algorithms/ppo.md", "PPOConfig.clip_schedule has no docstring"),
        ("algorithms/sac.md", "the page of SAC is missing"),
        *((name, "there is no command `raypid nosuch`") for name in UNBUILT),
        ("roles.md", "a block in 'bash' is checked by nobody"),
        *(("roles.md", DEFECTS[text]) for text in planted[:-1]),
    ]
    missing = [(page, text) for page, text in expected if not any(page in line and text in line for line in lines)]
    assert not missing, said


@pytest.mark.ci_slow
def test_code_that_fails_when_it_runs_fails_make_docs(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "roles.md").write_text(f"# Roles\n{block('python', 'print(1)')}{block('python', '1 / 0')}")
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=lambda folder, names: {*names} - COPIED)
    for name in ("raypid", "benchmarks", "tools", "examples", "pyproject.toml", "Makefile", "README.md"):
        (tmp_path / name).symlink_to(ROOT / name)
    words = ["make", "-o", "install", "-o", "site", "docs", f"BIN={Path(sys.executable).parent}"]
    done = subprocess.run([*words, "PYTEST_ARGS=-k roles"], cwd=tmp_path, capture_output=True, text=True)
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    assert done.returncode != 0 and len(failed) == 1 and "[docs/roles.md:" in failed[0], done.stdout
    assert "ZeroDivisionError" in done.stdout
