"""Changes of kernels: functions are cut out of their files; messages decide what is looked at."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kb.errors import InvalidRequest
from skills.lineage.binding import bundle_of, calls_of
from skills.lineage.from_history import between, changes_of, patched, steps_of_files
from skills.lineage.functions import functions_of
from skills.trajectories.git_history import Repository, claimed_speedup

HEADER = """#pragma once
#define AT(i, j) a[(i) * lda + (j)]
typedef struct { int unused; } Config;
static inline float twice(float x) { return 2 * x; }
"""
NAIVE = """// A tiny library. { "braces in comments" }
#include <stdio.h>
#include "inc/tools.h"
#include "missing.h"
#if defined(_WIN32)
#include <windows.h>
#endif
typedef float real;
static const char *name = "}{";
static float table[64] __attribute__((aligned(64)));
int unrelated(Config *c) { for (;;) return c->unused; }

void scale(float *out, const real *x, int n) {
  int i;
#ifdef UNROLL
  for (i = 0; i < n; i++) out[i] = 0;
#endif
  for (i = 0; i < n; i++) {
    out[i] = twice(x[i]) + table[i % 64]; /* } */
  }
}
"""
FAST = NAIVE.replace("  int i;\n", "  int i;\n#pragma omp simd\n")


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    command = ["git", *who, "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two commits that claim speed (one of them also renames), and one that does not."""
    root = tmp_path / "tiny"
    (root / "src" / "inc").mkdir(parents=True)
    git(root, "init", "-q")
    (root / "src" / "inc" / "tools.h").write_text(HEADER)
    for text, message in (
        (NAIVE, "start"),
        (NAIVE.replace("tiny library", "small library"), "faster words"),
        (FAST, "vectorise scale, 1.5x"),
        (FAST.replace("twice(x[i])", "x[i] + x[i]"), "tidy"),
    ):
        (root / "src" / "k.c").write_text(text)
        git(root, "add", "-A")
        git(root, "commit", "-q", "-m", message)
    return root


def test_function_is_cut_out_with_what_it_needs() -> None:
    functions = functions_of(NAIVE, "src/k.c", {"src/inc/tools.h": HEADER}.get)
    assert set(functions) == {"scale", "unrelated"}
    scale = functions["scale"]
    assert [(p.name, p.element, p.pointer, p.const, p.size) for p in scale.parameters] == [
        ("out", "float32", True, False, False),
        ("x", "float32", True, True, False),
        ("n", "int32", False, False, True),
    ]
    for needed in (
        "float twice(float x)",
        "typedef float real",
        "#ifdef UNROLL",
        "<stdio.h>",
        "float table[64]",
    ):
        assert needed in scale.text
    for left_out in ("Config", "unrelated", "windows.h>\n#endif\n#endif", "missing.h", "//"):
        assert left_out not in scale.text
    assert "of type Config" in functions["unrelated"].refusal
    assert scale.text.count("#if") == scale.text.count("#endif")


def test_methods_templates_and_structs_are_refused() -> None:
    text = (
        "template <typename T> void f(T *x, int n) { for (;;) x[n] = 0; }\n"
        "void A::g(float *x, int n) { for (;;) x[n] = 0; }\n"
        "float *h(float *x) { for (;;) return x; }\n"
        "void k(float **x, int n) { while (n) x[n] = 0; }\n"
    )
    refusals = {name: f.refusal for name, f in functions_of(text, "a.cpp").items()}
    assert all(refusals.values()) and len(refusals) == 4, refusals


def test_only_claimed_changes_of_code_are_found(folder: Path) -> None:
    repository = Repository(folder)
    changes, refused = changes_of(repository, ["src"])
    assert [(c.after.name, c.claimed, c.subject) for c in changes] == [
        ("scale", 1.5, "vectorise scale, 1.5x")
    ]
    assert not refused
    assert changes[0].provenance["commit"] == git(folder, "rev-parse", "HEAD~1").strip()
    assert changes[0].provenance["path"] == "src/k.c"
    every, _ = changes_of(repository, ["src/k.c"], claimed_only=False)
    assert [c.subject for c in every] == ["vectorise scale, 1.5x", "tidy"]


def test_files_are_steps_although_their_functions_have_other_names(folder: Path) -> None:
    first = NAIVE.replace("void scale(", "float one_v1(float x) { return x; }\nvoid scale_v1(")
    first = first.replace("out[i] = 0", "out[i] = one_v1(0)")
    second = FAST.replace("void scale(", "float one_v2(float x) { return x; }\nvoid scale_v2(")
    second = second.replace("out[i] = 0", "out[i] = one_v2(0)")
    for name, text in (("a.c", first), ("b.c", second)):
        (folder / "src" / name).write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "steps")
    changes, refused = steps_of_files(Repository(folder), ["src/a.c", "src/b.c", "src/inc/tools.h"])
    assert [(c.before.name, c.after.name) for c in changes] == [("scale_v2", "scale_v2")]
    assert "one_v2" in changes[0].before.text and "v1" not in changes[0].before.text
    assert ["no function in common" in refusal.reason for refusal in refused] == [True]
    git(folder, "clone", "-q", "--depth", "1", folder.as_uri(), str(folder / "shallow"))
    assert len(steps_of_files(Repository(folder / "shallow"), ["src/a.c", "src/b.c"])[0]) == 1


def test_patches_make_a_history_and_what_does_not_apply_is_refused(
    folder: Path, tmp_path: Path
) -> None:
    git(folder, "format-patch", "-q", "--root", "-o", str(tmp_path / "p"), "HEAD")
    series = sorted((tmp_path / "p").iterdir())
    with patched(series) as (repository, failed):
        changes, _ = changes_of(repository, ["."])
    assert not failed and [c.after.name for c in changes] == ["scale"]
    with patched(series[2:]) as (repository, failed):
        assert not changes_of(repository, ["."])[0]
    assert [f.path for f in failed] == [path.name for path in series[2:]]
    assert "does not apply" in failed[0].reason


def test_programs_of_a_strangers_settings_do_not_run(folder: Path, tmp_path: Path) -> None:
    ran, program = tmp_path / "ran", tmp_path / "program"
    signature = "-----BEGIN PGP SIGNATURE-----\\n\\nx\\n-----END PGP SIGNATURE-----\\n"
    program.write_text(
        f"#!/bin/sh\ntouch {ran}\necho '[GNUPG:] SIG_CREATED ' >&2\nprintf -- '{signature}'\n"
    )
    program.chmod(0o755)
    git(folder, "config", "gpg.program", str(program))
    git(folder, "commit", "-q", "-S", "--amend", "-m", "signed\x1efaster\x1f3x")
    for setting in (
        "log.showSignature=true",
        "core.repositoryFormatVersion=1",
        "extensions.partialClone=origin",
        "remote.origin.promisor=true",
        f"remote.origin.url={tmp_path}",
        f"remote.origin.uploadpack={program}",
    ):
        git(folder, "config", *setting.split("=", 1))
    blob = git(folder, "rev-parse", "HEAD:src/k.c").strip()
    (folder / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    assert ran.exists()
    ran.unlink()
    repository = Repository(folder)
    messages = [commit.message.strip() for commit in repository.commits(["src"])]
    assert messages == ["faster words", "vectorise scale, 1.5x", "signed\x1efaster\x1f3x"]
    assert repository.text("HEAD", "src/k.c") is None
    assert not ran.exists()


def test_no_repository_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="git cannot read"):
        Repository(tmp_path)


@pytest.mark.parametrize(
    ("message", "factor"),
    [
        ("1.5x inference speedup", 1.5),
        ("20% faster", 1.2),
        ("Speed up: 20 %", 1.2),
        ("speed-up: 3.5 over the reference", 3.5),
        ("from 3x to 4x", 4.0),
        ("x86", None),
        pytest.param("speedup 1." + "9" * 200_000 + "%", 1.0, id="many digits"),
    ],
)
def test_claimed_speedup_of_a_message(message: str, factor: float | None) -> None:
    assert claimed_speedup(message) == factor


def test_calls_try_both_storage_orders_of_a_product() -> None:
    text = (
        "void gemm(int m, int n, int k, double *a, int lda, double *b, int ldb, double *c, int ldc)"
        " { for (;;) c[0] += a[0] * b[0]; }"
    )
    function = functions_of(text, "g.c")["gemm"]
    calls = [call.statements for call in calls_of(function)]
    by_rows = "t[0].shape[0], t[1].shape[1], t[0].shape[1], (double *)t[0].data, t[0].shape[1]"
    by_columns = "t[1].shape[1], t[0].shape[0], t[0].shape[1], (double *)t[1].data, t[1].shape[1]"
    assert any(by_rows in call for call in calls[:4])
    assert any(by_columns in call for call in calls[:4])
    bundle = bundle_of(function, calls[0], chip="rvv")
    assert '#include "chip.h"' in bundle.source and "kernlore_abi" not in bundle.source


def test_hunks_are_applied_one_after_the_other() -> None:
    before = "a\nb\nc\nd\ne\n"
    after = "A\nb\nC\nd\nE\n"
    assert between(before, after) == ["A\nb\nc\nd\ne\n", "A\nb\nC\nd\ne\n"]
    assert between(before, before.replace("c", "C")) == []
