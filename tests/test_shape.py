"""Promise: everything that dvc.yaml, the Makefile and the README name exists, and the house has no secret doors."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest
import yaml

from stages.jobs import WORKER_CODE
from tests.conftest import ROOT, run
from tests.faults.counts import counted, names, recounted

DVC = yaml.safe_load((ROOT / "dvc.yaml").read_text())
SOURCES = sorted(path for path in (ROOT / "stages").rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Modules of this project that a file imports, wherever in the file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return {name for name in found if name.startswith("stages.")}


def module_file(name: str) -> Path | None:
    base = ROOT / name.replace(".", "/")
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


def reached(start: Path) -> set[Path]:
    """Files of this project that a file's imports lead to."""
    todo, found = [start], set()
    while todo:
        path = todo.pop()
        if path not in found:
            found.add(path)
            todo += [file for name in imports(path) if (file := module_file(name))]
    return found


@pytest.mark.parametrize("name", DVC["stages"])
def test_every_stage_names_a_script_and_deps_that_exist(name: str) -> None:
    stage = DVC["stages"][name]
    script = re.fullmatch(r"python -m stages\.(\w+)( \$\{item\.task\})?", stage["cmd"])
    assert script, stage["cmd"]
    assert (ROOT / "stages" / f"{script[1]}.py").is_file()
    for dep in stage["deps"]:
        path = dep.replace("${item.task}", "sft").replace("${platform}", "local").replace("${protocol}", "pilot")
        assert path.startswith(("data/", "metrics/")) or (ROOT / path).exists(), dep


@pytest.mark.parametrize("name", DVC["stages"])
def test_every_protocol_key_that_a_stage_reads_is_in_both_protocols(name: str) -> None:
    protocols = [yaml.safe_load(path.read_text()) for path in (ROOT / "protocols").glob("*.yaml")]
    for entry in DVC["stages"][name].get("params", []):
        keys = entry.get("protocols/${protocol}.yaml", []) if isinstance(entry, dict) else []
        for key in keys:
            for protocol in protocols:
                here = protocol
                for part in key.replace("${item.task}", "sft").split("."):
                    here = here[part]


def test_the_worker_ships_all_that_it_imports_and_nothing_of_a_platform() -> None:
    shipped = {file for name in WORKER_CODE for file in [ROOT / name, *(ROOT / name).rglob("*.py")] if file.is_file()}
    assert reached(ROOT / "stages/worker.py") <= shipped
    assert not [file for file in shipped if {"platforms", "comparison"} & set(file.parts)]


def test_platforms_know_no_training_and_scoring() -> None:
    for path in (ROOT / "stages/platforms").rglob("*.py"):
        known = {name.split(".")[1] for name in imports(path)}
        assert not known & {"training", "scoring", "corpora", "worker"}, path


def test_only_the_worker_calls_the_trainer_and_the_scorers() -> None:
    heavy = {"stages.training.trainer", "stages.scoring.labels", "stages.scoring.nll"}
    outside = [path for path in SOURCES if not {"training", "scoring"} & set(path.parts)]
    assert [path.name for path in outside if heavy & imports(path)] == ["worker.py"]


def test_every_make_target_of_the_readme_exists_and_is_listed() -> None:
    listed = set(re.findall(r"^([a-z-]+) ", run("make", "-s", cwd=ROOT).stdout, re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z-]+)", (ROOT / "README.md").read_text()))
    assert named <= listed
    assert {"setup", "repro", "test", "lint", "format"} <= listed


def test_every_module_and_path_of_the_readme_exists() -> None:
    text = (ROOT / "README.md").read_text()
    for name in set(re.findall(r"python -m ([\w.]+)", text)):
        assert importlib.util.find_spec(name), name
    for path in set(re.findall(r"`((?:stages|protocols|docs|bench|emulators|reference)/[\w./-]*)`", text)):
        assert (ROOT / path).exists(), path


def test_every_parameter_is_explained_in_the_readme() -> None:
    text = (ROOT / "README.md").read_text()
    for key in yaml.safe_load((ROOT / "params.yaml").read_text()):
        assert f"`{key}" in text, key


def test_nothing_loads_pickles_or_runs_a_repositorys_code() -> None:
    for path in SOURCES:
        text = path.read_text()
        assert "trust_remote_code=True" not in text
        assert not re.search(r"\bpickle\b|torch\.load\(", re.sub(r'"""|`[^`]*`|#.*', "", text)), path


def test_the_committed_lock_is_of_the_embedded_protocol_on_the_local_platform() -> None:
    lock = yaml.safe_load((ROOT / "dvc.lock").read_text())
    train = lock["stages"]["train@sft"]["params"]
    assert train["params.yaml"]["platform"] == "local"
    assert "protocols/embedded.yaml" in train


def test_every_fault_of_the_reliability_table_names_tests_that_exist() -> None:
    rows = [
        line
        for line in (ROOT / "docs/reliability.md").read_text().splitlines()
        if line.startswith("|") and "`tests/" in line
    ]
    assert rows
    for row in rows:
        assert names(row), row
        for name in names(row):
            path, test = name.split("::")
            assert re.search(rf"^def {test}\(", (ROOT / path).read_text(), re.MULTILINE), name


def test_the_counts_of_the_reliability_table_come_from_the_report(tmp_path: Path) -> None:
    report = tmp_path / "faults.xml"
    cases = '<testcase classname="tests.faults.test_x" name="test_a[{}]">{}</testcase>'
    made = ["<properties><property name='tried' value='40'/></properties>", "<failure/>", "<skipped/>"]
    report.write_text(f"<r>{''.join(cases.format(n, inner) for n, inner in enumerate(made))}</r>")
    row = "| a | b | `tests/faults/test_x.py::test_a` | {} | {} |\n"
    other = "| a | b | `tests/faults/test_y.py::test_b` | 7 | 0 |\n"
    found = recounted(row.format("-", "-") + other, *counted(report))
    assert found == row.format(41, 1) + other
