"""docs/architecture.md says of every module what it is for, and which may import which."""

import ast
import graphlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "src" / "forebay"
MODULES = (ROOT / "docs" / "architecture.md").read_text().partition("\n## The modules\n")[2].partition("\n## ")[0]
LAYERS = re.findall(r"^\| `([a-z_/]+)` \|", MODULES.partition("\n### ")[0], re.MULTILINE)
TABLES = re.findall(r"^### `([a-z/]+)/`\n(.*?)(?=^###)", MODULES, re.MULTILINE | re.DOTALL)


def modules(package):
    names = (path.stem for path in (SOURCES / package).iterdir() if path.suffix == ".py" or (path / "__init__.py").exists())
    return sorted(name for name in names if name != "__init__")


@pytest.mark.parametrize(("package", "table"), TABLES, ids=[package for package, _ in TABLES])
def test_a_table_has_each_module_once(package, table):
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert sorted(name for row in rows for name in re.findall(r"`([a-z_]+)/?`", row)) == modules(package)


@pytest.mark.parametrize("package", ["aggregates", "cli", "nexmark", "replication", "state", "testing"])
def test_a_package_without_a_table_has_its_modules_in_a_row(package):
    row = next(line for line in MODULES.splitlines() if line.startswith(f"| `{package}/` |"))
    told = row.split("|")[2]
    assert sorted(set(re.findall(r"`([a-z_0-9]+)`", told)) - {"forebay"}) == modules(package)


def test_a_module_outside_of_packages_is_a_layer():
    assert {path.stem for path in SOURCES.glob("*.py")} - {"__init__"} <= {*LAYERS}


def layer(module):
    """The place in the list of what has a module; `forebay` alone is what the package exports."""
    within = module.removeprefix("forebay").lstrip(".").replace(".", "/")
    found = [place for place, name in enumerate(LAYERS) if f"{within}/".startswith(name.rstrip("/") + "/")]
    return found[0] if found else LAYERS.index("forebay")


def imported(path):
    """The modules of forebay that a file imports anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "forebay")
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "forebay":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_no_import_climbs():
    climbing = []
    for path in SOURCES.rglob("*.py"):
        inside = path.relative_to(SOURCES).with_suffix("").as_posix().removesuffix("__init__").strip("/")
        module = f"forebay.{inside}".rstrip(".").replace("/", ".")
        climbing += [f"{module} imports {other}" for other in imported(path) if layer(other) < layer(module)]
    assert len(LAYERS) > 12
    assert not climbing


def test_imports_are_no_circle():
    """Not even through imports within functions; a name is that of a module, or of something in one."""
    paths = {
        path.relative_to(SOURCES.parent).with_suffix("").as_posix().replace("/", "."): path for path in SOURCES.rglob("*.py")
    }
    graph = {
        name: {found for other in imported(path) for found in (other, other.rpartition(".")[0]) if found in paths}
        for name, path in paths.items()
    }
    order = list(graphlib.TopologicalSorter(graph).static_order())
    assert len(order) > 150
