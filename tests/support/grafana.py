"""Checks dashboards against the types that Grafana publishes: @grafana/schema, by TypeScript's compiler.

There is no package of Grafana itself in Debian, PyPI or npm. `NODE_PATH` names a folder with both packages:
`npm install --prefix DIR @grafana/schema@13.2.3 typescript@5`, then `NODE_PATH=DIR/node_modules`.
"""

import os
import subprocess
from pathlib import Path

import pytest

SCHEMA = "@grafana/schema/dist/types/raw/dashboard/x/types.gen"
LIMIT_S = 120.0
# A JSON file has the values of Grafana's string enums, not their names.
HEAD = """import type {{ Dashboard }} from "{schema}";
type Plain<T> = T extends string ? `${{T}}` : T extends object ? {{ [K in keyof T]: Plain<T[K]> }} : T;
export const dashboard: Plain<Dashboard> = """


def objections(dashboard: str, folder: Path) -> str:
    """What the published types find wrong with the JSON text of a dashboard; empty if nothing."""
    modules = _modules()
    source = folder / "dashboard.ts"
    source.write_text(HEAD.format(schema=modules / SCHEMA) + dashboard, encoding="utf-8")
    options = ["--noEmit", "--strict", "--skipLibCheck", "--module", "esnext", "--moduleResolution", "bundler"]
    command = ["node", str(modules / "typescript/bin/tsc"), *options, str(source)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S).stdout


def _modules() -> Path:
    for folder in os.environ.get("NODE_PATH", "").split(os.pathsep):
        if folder and (Path(folder) / f"{SCHEMA}.d.ts").exists() and (Path(folder) / "typescript").exists():
            return Path(folder)
    pytest.skip("NODE_PATH names no folder with @grafana/schema and typescript: see tests/support/grafana.py")
