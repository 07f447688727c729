"""Mistakes of users: each gives one message with the place, what is expected and what to do, and nothing is written.

Every case calls the real entry point, ``flbench sweep``, without --dry-run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from flbench.cli import main

HEAD = "version: 1\nname: test\n"

#: Line 3 of a file that starts with HEAD.
THIRD = "spec.yaml:3: "


@dataclass(frozen=True)
class Case:
    """One mistake: the file (after HEAD unless ``whole``), the options, and what the message must contain."""

    what: str
    text: str | bytes
    says: tuple[str, ...]
    options: tuple[str, ...] = ()
    whole: bool = False


def case(what: str, text: str, *says: str) -> Case:
    return Case(what, text, (THIRD, *says))


def whole(what: str, text: str | bytes, *says: str) -> Case:
    return Case(what, text, says, whole=True)


AXES = "base: {clients: 10}\naxes: {lr: [0.1, 0.2], norm: [none, ln]}\n"


def interaction(between: str) -> str:
    """A planned comparison between the two values of a field."""
    return f"report: {{contrasts: [{{norm: fn, against: none, between: {between}}}]}}"


def planned(what: str, contrast: str, *says: str) -> Case:
    """A planned comparison of a sweep with two normalizations and two partitions."""
    axes = 'axes: {norm: [none, ln], partition: ["classes:1", iid]}'
    return case(what, f"report: {{contrasts: [{contrast}]}}\n{axes}", *says)


def option(what: str, options: tuple[str, ...], *says: str) -> Case:
    return Case(what, AXES, says, options)


def merge_bomb() -> str:
    pairs = ", ".join(f"k{index}: 1" for index in range(300))
    return f"a: &a {{{pairs}}}\nb: {{<<: [{', '.join(['*a'] * 1000)}]}}\n"


def bomb() -> str:
    levels = [
        f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]"
        for before, name in zip("abcdefgh", "bcdefghi", strict=True)
    ]
    return "\n".join(["a: &a [1, 1, 1]", *levels])


CASES = [
    # The file itself.
    whole("an empty file", "", "spec.yaml:1: ", "the file is empty"),
    whole("a list", "- version: 1\n", "spec.yaml:1: ", "expected a mapping"),
    whole("a tab", "version: 1\nbase:\n\tlr: 1\n", "spec.yaml:3: ", "not valid YAML", "not with tabs"),
    whole("an open bracket", "version: 1\naxes: {lr: [1\n", "not valid YAML"),
    whole("two colons", "version: 1\nname: a: b\n", "spec.yaml:2: ", "mapping values are not allowed"),
    whole("not UTF-8", b"version: 1\nname: \xff\xfe\n", "expected text in UTF-8", "0xff"),
    whole("a zero byte", b"version: 1\nname: a\x00b\n", "not valid YAML"),
    whole("a tag that constructs", "version: !!python/object:os.system x\n", "spec.yaml:1: ", "is not allowed"),
    whole("an unknown anchor", "version: 1\nbase: *nowhere\n", "spec.yaml:2: ", "undefined alias"),
    whole("an anchor in itself", "version: 1\nbase: &b [*b]\n", "spec.yaml:2: ", "contains itself"),
    whole("an alias bomb", bomb(), "unfolds to more than"),
    whole("deep nesting", "base: " + "[" * 60 + "]" * 60, "nested more than 50 levels"),
    whole("endless nesting", "[" * 200_000, "spec.yaml:1: nested more than 50 levels"),
    whole("nesting by anchors", f"a: &a {'[' * 40}{']' * 40}\nb: {'[' * 20}*a{']' * 20}\n", "more than 50 levels"),
    whole("a list of 10 MB", "axes: {lr: [" + "0.1, " * 2_000_000 + "]}", "at most 256 KiB", "{linspace: ...}"),
    whole("a merge of a list of lists", "a: &a {x: 1}\nb: {<<: [[*a]]}\n", "takes a mapping or a list of mappings"),
    whole("a merge bomb", merge_bomb(), "unfolds to more than"),
    whole("a number as a key", "version: 1\n3: x\n", "spec.yaml:2: ", "expected text as a key"),
    whole("a key given twice", "version: 1\nname: a\nname: b\n", "spec.yaml:3: name: ", "twice (first in line 2)"),
    case("a field given twice", "base: {lr: 1, E: 2, lr: 3}", "base.lr: ", "twice"),
    # The top level.
    whole("no version", "name: x\n", "version: a value is required"),
    whole("a newer version", "version: 2\nname: x\n", "spec.yaml:1: version: ", "newer than this flbench", "update"),
    whole("no name", "version: 1\n", "name: a value is required"),
    whole("a name with a path", "version: 1\nname: ../../etc\n", "spec.yaml:2: name: ", "got '../../etc'"),
    whole("an endless name", f"version: 1\nname: {'a' * 5000}\n", "name: expected a name", "aaa...'"),
    whole("a control character", 'version: 1\nname: "a\\nb"\n', "name: expected a name", r"'a\nb'"),
    case("an unknown key", "axs: {lr: [1]}", "axs: unknown key 'axs'; did you mean 'axes'? known: axes, "),
    case("a section that is no mapping", "base: [1, 2]", "base: expected a mapping", "got [1, 2]"),
    case("grids that are no list", "grids: {axes: {lr: [1]}}", "grids: expected a list"),
    case("grids and axes", "axes: {lr: [1]}\ngrids: [{axes: {E: [1]}}]", "axes: ", "not both"),
    case("an unknown key of a grid", "grids: [{axis: {lr: [1]}}]", "grids[0].axis: ", "did you mean 'axes'?"),
    # Fields and their values.
    case("an unknown field", "base: {learning_rat: 1}", "base.learning_rat: unknown field", "known: "),
    case("a text for a number", "base: {lr: fast}", "base.lr: expected a number, got 'fast'"),
    case("a truth value for a number", "base: {clients: true}", "base.clients: expected a whole number, got True"),
    case("a number for a truth value", "base: {bias: 1}", "base.bias: expected true or false, got 1"),
    case("half a client", "base: {clients: 2.5}", "base.clients: expected a whole number, got 2.5"),
    case("lr infinite", "axes: {lr: [0.1, .inf]}", "axes.lr[1]: expected a finite number, got inf"),
    case("lr zero", "base: {lr: 0}", "base.lr: expected a value greater than 0, got 0"),
    case("too much participation", "base: {participation: 2}", "base.participation: ", "at most 1, got 2"),
    case("endless rounds", "base: {rounds: 1000000000000}", "base.rounds: expected a value of at most 10000000, got"),
    case(
        "endless evaluations",
        "base: {rounds: 1000000, eval_every: 1}",
        "base.eval_every: every 1 of 1,000,000 rounds",
        "at least 10",
    ),
    case("a number beyond 64 bits", "base: {clients: 9223372036854775808}", "base.clients: ", "64 bits"),
    case("a number of 5,000 digits", f"base: {{lr: 0x{'f' * 5000}}}", "base.lr: ", "64 bits, got '0xffff"),
    case("an unknown precision", "base: {precision: fp8}", "base.precision: ", "did you mean 'fp"),
    case("an unknown kind", "base: {kind: centralised}", "base.kind: ", "did you mean 'centralized'?"),
    case("a field of another kind", "base: {kind: centralized, clients: 3}", "'clients' of a centralized experiment"),
    case("E and local_steps", "base: {E: 1, local_steps: 2}", "given twice: as E and as local_steps"),
    case("a seed in base", "base: {seed: 1}", "base.seed: seeds are given by 'seeds:"),
    case("a sub-field of a number", "base: {lr.x: 1}", "'lr' has no fields of its own"),
    # Studies.
    case(
        "a normalization of another kind", "base: {kind: sharpness, normalized: bn}", "got 'bn'; did you mean 'bn-all'"
    ),
    case(
        "a norm in a study",
        "grids: [{set: {kind: sharpness}, axes: {norm: [ln]}}]",
        "grids[0].axes.norm[0]: unknown field 'norm' of a sharpness experiment; did you mean 'normalized'?",
    ),
    case("layer norm of one output", "base: {kind: sharpness, normalized: ln-all}", "at least 3 outputs, got 1"),
    case("a batch of one sample", "base: {kind: rank, width: 1, normalized: bn}", "bn is over samples", "only 1"),
    case("probes in a study", "base: {kind: rank, probes: [drift]}", "unknown field 'probes' of a rank experiment"),
    case("a rate where nothing trains", "base: {kind: rank, lr: 0.1}", "unknown field 'lr' of a rank experiment"),
    case(
        "a way to draw",
        "base: {kind: deep, init: hee}",
        "base.init: expected 'torch', 'he' or 'glorot'",
        "did you mean 'he'?",
    ),
    # Components.
    case("an unknown method", "base: {method: fedavgg}", "base.method: ", "did you mean 'fedavg'? known: fedavg, "),
    case("another method's own", "axes: {method: [fedyogi, fedavg], method.tau: [0.1]}", "'tau' of method 'fedavg'"),
    case("a component without a name", "base: {norm: {groups: 2}}", "base.norm: expected a norm as a name"),
    case(
        "a shorthand of text", "base: {partition: dirichlet:abc}", "base.partition.beta: expected a number, got 'abc'"
    ),
    case("a shorthand of nothing", "base: {partition: dirichlet}", "base.partition.beta: a value is required"),
    case("no shorthand", "base: {partition: iid:3}", "takes no value after a colon"),
    case(
        "a sub-field that an axis hides",
        "base: {norm.groups: 4}\naxes: {norm: [gn]}",
        "base.norm.groups: has no effect on any cell: axes.norm replaces it",
    ),
    case(
        "a setting inside a component and beside it",
        "base: {method: {name: fedprox, mu: 0.9}, method.mu: 0.2}",
        "base.method.mu: method.mu is given twice: inside method and as method.mu",
    ),
    case("a shorthand and its field", "base: {partition: dirichlet:0.1, partition.beta: 1}", "partition.beta is given"),
    case(
        "a setting inside an axis and in another",
        "axes: {method: [fedavg, {name: fedprox, mu: 0.9}], method.mu: [1, 2]}",
        "axes.method.mu: method.mu is given twice in one grid: in axes and in axes",
    ),
    # Rules without effect.
    case(
        "a base value that every grid replaces",
        "base: {lr: 0.5, norm: ln}\ngrids: [{set: {lr: 1}}, {axes: {lr: [0.1, 0.2]}}]",
        "base.lr: has no effect on any cell: grids[0].set.lr and grids[1].axes.lr replace it",
    ),
    case(
        "an axis that an override replaces",
        "axes: {lr: [0.1, 0.2]}\noverrides: [{if: {method: fedavg}, set: {lr: 1}}]",
        "axes.lr: has no effect on any cell: overrides[0].set.lr replaces it",
    ),
    case(
        "a value for excluded cells",
        "grids: [{axes: {norm: [none]}}, {set: {clients: 20, norm: ln}}]\nexclude: {norm: ln}",
        "grids[1].set.clients: has no effect on any cell: none that it would reach is left",
    ),
    Case(
        "--set that an override replaces",
        "overrides: [{if: {norm: none}, set: {lr: 1}}]",
        ("--set lr=2: base.lr: has no effect on any cell: overrides[0].set.lr replaces it",),
        ("--set", "lr=2"),
    ),
    Case(
        "--set of a component whose setting a grid replaces",
        "grids: [{set: {method.mu: 0.9}}]",
        ("base.method.mu: has no effect on any cell: grids[0].set.method.mu replaces it",),
        ("--set", "base.method={name: fedprox, mu: 0.1}"),
    ),
    Case(
        "--set that --only leaves without effect",
        "grids: [{axes: {norm: [ln]}}, {set: {kind: centralized, norm: bn}}]",
        ("--set clients=20: base.clients: has no effect on any cell",),
        ("--set", "clients=20", "--only", "kind=centralized"),
    ),
    option("--set twice", ("--set", "E=1", "--set", "local_steps=2"), "--set E=1: has no effect: --set local_steps=2"),
    option(
        "--set of a component, then of another's setting",
        ("--set", "method=fedavg", "--set", "method.mu=1"),
        "--set method.mu=1: base.method.mu: unknown field 'mu' of method 'fedavg'",
    ),
    option("--set inside an axis beyond its end", ("--set", "axes.norm[2].groups=4"), "a list of 2"),
    option(
        "--set inside an axis that is not there", ("--set", "axes.method[0].mu=4"), "there is no list 'method' in axes"
    ),
    option("--set inside a name", ("--set", "axes.norm[1].groups=4"), "axes.norm[1].groups: ", "of norm 'ln'"),
    # Values that contradict each other.
    case("more classes than there are", "base: {partition: classes:11}", "base.partition: ", "at most classes:10"),
    case("more clients than samples", "base: {clients: 10000, partition: iid}", "base.clients: ", "the set has 1442"),
    case(
        "more shards than samples", "base: {clients: 1000, partition: 'shards:2'}", "base.clients: ", "in 2000 shards"
    ),
    case("classes that no client holds", "base: {clients: 3}", "classes:1 of digits among 3 clients"),
    case("too small an image", "base: {model: cnn}", "base.model: cnn on digits: images of 8x8 pixels are too small"),
    case("groups that do not divide", "axes: {norm: [gn], norm.groups: [2, 3]}", "groups=3 does not divide", "128"),
    case("a batch of one", "base: {norm: bn, batch_size: 1}", "bn needs at least 2 samples in a batch"),
    # Axes.
    case("an empty axis", "axes: {lr: []}", "axes.lr: expected at least one value"),
    case("an axis that is no list", "axes: {lr: 0.1}", "axes.lr: expected a list of values, got 0.1; write [0.1]"),
    case("a zip of unequal lengths", "zip: {lr: [1, 2], E: [1]}", "zip: ", "equal length, lr has 2, E has 1"),
    case("an axis in zip and axes", "grids: [{axes: {E: [1]}, zip: {local_steps: [2]}}]", "in axes and in zip"),
    case(
        "an axis that is also set",
        "grids: [{set: {lr: 1}, axes: {lr: [1]}}]",
        "grids[0].axes.lr: ",
        "in set and in axes",
    ),
    case("an axis of seeds", "axes: {seed: [1]}", "axes.seed: seeds are given by"),
    case("seeds that are no list", "grids: [{seeds: 3}]", "grids[0].seeds: expected a list of seeds or {range"),
    case(
        "seeds of no grid", "seeds: [0]\ngrids: [{seeds: [1]}]", "seeds: has no effect: every grid has seeds of its own"
    ),
    case("an unknown generator", "axes: {lr: {logspce: [1, 2, 3]}}", "axes.lr: expected a list of values, {range"),
    case("a range with a step", "axes: {E: {range: [1, 9, 2]}}", "axes.E: expected range: [start, stop]"),
    case("an endless range", "axes: {E: {range: [0, 1000000000]}}", "axes.E: ", "at most 1,000,000 of them"),
    Case(
        "many endless ranges",
        f"grids: [{', '.join(['{axes: {E: {range: [1, 900000]}}}'] * 20)}]",
        ("runs are more than the 1,000,000", "split it"),
    ),
    Case(
        "a zip of many endless ranges",
        f"zip: {{{', '.join(f'method.m{index}: {{range: [1, 900000]}}' for index in range(20))}}}",
        ("zip: expected at most 1,000,000 values in its lists",),
    ),
    Case("a range of seeds times a range", "axes: {E: {range: [1, 2001]}}\nseeds: {range: [0, 1000]}", ("split it",)),
    case("logspace from zero", "axes: {lr: {logspace: [0, 1, 3]}}", "above 0, got [0, 1, 3]"),
    case("logspace without a number", "axes: {lr: {logspace: [0.1, 1]}}", "logspace: [first, last, n] (3 numbers)"),
    case("half a point", "axes: {lr: {linspace: [0.1, 1, 2.5]}}", "n a whole number"),
    case(
        "an axis of requests", "axes: {rounds: [1, 2]}", "axes.rounds[1]: ", "rounds 1 and rounds 2", "how long to run"
    ),
    Case(
        "too many cells",
        "axes: {batch_size: {range: [1, 2000]}, E: {range: [1, 2000]}}",
        ("3,996,001 runs", "split it"),
    ),
    # Rules and seeds.
    case("an exclude that matches nothing", "exclude: [{lr: 5}]", "exclude[0]: this rule matches no cell"),
    case(
        "an override that matches nothing", "overrides: [{if: {norm: ln}, set: {lr: 1}}]", "overrides[0]: ", "no cell"
    ),
    case("an unknown name in a rule", "exclude: [{method: fedyog}]", "exclude[0].method: ", "did you mean 'fedyogi'?"),
    case("an unknown field in a rule", "exclude: [{metod: fedavg}]", "exclude[0].metod: ", "did you mean 'method'?"),
    case("nothing is left", "exclude: [{method: fedavg}]", "no cell is left"),
    case("an override without if", "overrides: [{set: {lr: 1}}]", "overrides[0].if: a value is required"),
    case("no seeds", "seeds: []", "seeds: expected at least one seed"),
    case("a seed twice", "seeds: [0, 1, 0]", "seeds: expected different seeds, got 0"),
    case("a mapping as a kind", "base: {kind: {a: 1}}", "base.kind: unknown kind"),
    case("a mapping as an excluded kind", "exclude: [{kind: {a: 1}}]", "exclude[0].kind: unknown kind"),
    case("a list as a kind of a rule", "overrides: [{if: {kind: [a]}, set: {lr: 1}}]", "if.kind: unknown kind"),
    option("--only of a mapping as a kind", ("--only", "kind={a: 1}"), "--only kind={a: 1}: kind: unknown kind"),
    # Other keys.
    case("no cores", "resources: {cpus: 0}", "resources.cpus: ", "at least 1, got 0"),
    case("a while", "resources: {time: soon}", "resources.time: ", "like 30m", "got 'soon'"),
    case("an unknown backend", "backend: {kind: slrum}", "backend.kind: ", "did you mean 'slurm'?"),
    case("slurm without a profile", "backend: {kind: slurm}", "backend.profile: a value is required"),
    case("an unknown W&B mode", "wandb: {mode: onlin}", "wandb.mode: ", "did you mean 'online'?"),
    case("an unknown metric", "report: {metric: accuracy}", "report.metric: ", "did you mean 'acc'?"),
    case("a margin in points", "report: {margin: 1}", "report.margin: ", "below 1, got 1; one point is 0.01"),
    case("a target in percent", "report: {target: 90}", "report.target: ", "at most 1, got 90; one percent is 0.01"),
    case("no rows", "report: {rows: []}", "report.rows: expected at least 1 of them, got []"),
    case("rows of no field", "report: {rows: [metod]}", "report.rows[0]: ", "did you mean 'method'?"),
    case("columns of data sets", "report: {cols: dataset}\n", "report.cols[0]: ", "has tables of its own", "partition"),
    case("columns of seeds", "report: {cols: [seed]}\n", "report.cols[0]: ", "a cell is the mean over its seeds"),
    case("columns of kinds", "report: {cols: [kind]}\n", "report.cols[0]: ", "each kind of experiment has tables"),
    case("columns of a request", "report: {cols: [eval_every]}\n", "report.cols[0]: ", "what a run records"),
    case("tuning data sets", "report: {tune: dataset}\naxes: {dataset: [digits, mnist]}", "tune[0]: ", "of its own"),
    case("rows of no setting", "report: {rows: [method.mx]}\n", "rows[0]: ", "of any method; did you mean 'mu'?"),
    case(
        "rows of a setting that no cell has",
        "report: {rows: [norm, method.mu]}\naxes: {method: [fedavg, scaffold]}",
        "report.rows[1]: no cell has method.mu: fix or remove it; here method is one of: fedavg, scaffold",
    ),
    case(
        "columns of a field that no cell has",
        "report: {cols: [clients]}\nbase: {kind: centralized}",
        "report.cols[0]: no cell has clients: fix or remove it",
    ),
    case("rows that are columns", "report: {rows: [norm, partition]}\n", "report.rows: ", "in rows and in cols"),
    case("an axis twice", "report: {cols: [E, local_steps]}\n", "report.cols: local_steps is an axis twice"),
    case("a metric without held-out data", "report: {metric: val_acc}\n", "report.metric: ", "set val_fraction", "acc"),
    case(
        "a metric of personal models",
        "report: {metric: acc_personal}\naxes: {method: [fedavg, fedbn], norm: [none, ln]}",
        "report.metric: no run records 'acc_personal': it needs a method or norm that keeps parts",
    ),
    case(
        "a contrast without pairs",
        'report: {contrasts: [{norm: ln, against: none}]}\nzip: {norm: [none, ln], partition: [iid, "classes:1"]}',
        "report.contrasts[0].norm: no two cells of a data set and model, with a seed in common, differ in norm alone",
    ),
    case("an unknown baseline", "report: {baseline: {method: fedav}}", "report.baseline.method: ", "'fedavg'"),
    case("an unknown headline", "report: {headline: [{norm: fm}]}", "report.headline[0].norm: ", "'fn'"),
    case(
        "an unknown condition", "report: {contrasts: [{norm: fn, against: none, if: {nrom: 1}}]}", ".if.nrom: ", "norm"
    ),
    planned(
        "a contrast of two fields",
        "{norm: ln, method: fedprox, against: none}",
        "contrasts[0]: expected one field, got norm and method; restrict the cells with if: {method: fedprox}",
    ),
    planned(
        "a misspelt key of a contrast",
        '{norm: ln, against: none, betwen: {partition: ["classes:1", iid]}}',
        "contrasts[0].betwen: unknown key 'betwen'; did you mean 'between'? known: between, measure, against, if",
    ),
    planned(
        "a condition that is no mapping", "{norm: ln, against: none, if: fedavg}", "contrasts[0].if: expected a mapping"
    ),
    planned(
        "a compared value that no cell has",
        "{norm: [ln, gn], against: none}",
        "contrasts[0].norm[1]: gn matches no cell: fix or remove it; here norm is one of: none, ln",
    ),
    planned("a reference that no cell has", "{norm: ln, against: bn}", "against: bn matches no cell", ": none, ln"),
    planned(
        "a condition that no cell meets",
        "{norm: ln, against: none, if: {method: fedprox}}",
        "contrasts[0].if.method: fedprox matches no cell",
        "here method is one of: fedavg",
    ),
    planned(
        "conditions that no cell meets together",
        "{norm: ln, against: none, if: {norm: ln}}",
        "contrasts[0]: matches no cell: fix or remove it; here no cell has norm: none and norm: ln",
    ),
    planned(
        "an interaction of a value that no cell has",
        '{norm: ln, against: none, between: {partition: ["classes:2", iid]}}',
        "contrasts[0].between.partition[0]: classes:2 matches no cell",
        "here partition is one of: classes:1, iid",
    ),
    planned("a value against itself", "{norm: ln, against: {name: ln}}", "against: expected another value", "itself"),
    case("a baseline that no cell has", "report: {baseline: {norm: fn}}", "report.baseline.norm: fn matches no cell"),
    case(
        "a headline that no cell has",
        'report: {headline: [{partition: "dirichlet:0.5"}]}',
        "report.headline[0].partition: dirichlet:0.5 matches no cell",
    ),
    case(
        "tuning what does not vary",
        "report: {tune: [momentum]}\naxes: {lr: [1, 2]}",
        "report.tune[0]: momentum does not vary: fix or remove it; here varies: lr",
    ),
    option(
        "--set of a contrast that no cell has",
        ("--set", "report.contrasts=[{norm: gn, against: none}]"),
        "report.contrasts[0].norm: gn matches no cell",
    ),
    option(
        "a change of the cells and a contrast for others",
        ("--set", "axes.norm=[none, gn]", "--set", "report.contrasts=[{norm: ln, against: none}]"),
        "report.contrasts[0].norm: ln matches no cell",
    ),
    case("an interaction of one value", interaction("{partition: [iid]}"), "between: ", "two different values"),
    case("an interaction of no field", interaction("[iid]"), "between: expected one field"),
    case("an interaction of a field with itself", interaction("{norm: [ln, gn]}"), "another field than norm"),
    case("a contrast without reference", "report: {contrasts: [{norm: fn}]}", "contrasts[0]: expected one field"),
    planned("an unknown measure", "{norm: ln, against: none, measure: fsat}", "measure: ", "did you mean 'fast'?"),
    planned(
        "an interaction of rounds",
        '{norm: ln, against: none, measure: fast, between: {partition: [iid, "classes:1"]}}',
        "measure: between compares differences of the metric",
    ),
    planned("the width of one rate", "{norm: ln, against: none, measure: easy}", "lr does not vary: fix or remove it"),
    case("tuning no field", "report: {tune: [lrr]}", "report.tune[0]: ", "did you mean 'lr'?"),
    case("val without held-out data", "report: {select_by: val}", "report.select_by: ", "val_fraction"),
    # Options.
    option("--set without =", ("--set", "lr"), "--set lr: expected PATH=VALUE"),
    option("--set without a path", ("--set", "=1"), "--set =1: expected PATH=VALUE"),
    option("--set of broken YAML", ("--set", "axes.lr=[1"), "--set axes.lr=[1: not valid YAML"),
    option("--set of nowhere", ("--set", "resource.cpus=1"), "did you mean 'resources'?"),
    option("--set beyond a list", ("--set", "grids.3.axes.lr=[1]"), "--set grids.3.axes.lr=[1]: ", "'grids'"),
    option("--set inside a number", ("--set", "version.x=1"), "version is 1 and has no 'x'"),
    option("--set of an unknown field", ("--set", "axes.lrr=[1]"), "did you mean 'lr'?"),
    option("--set of a field that is an axis", ("--set", "lr=1"), "--set lr=1: ", "use --set axes.lr="),
    option("--set of a name with a path", ("--set", "name=../x"), "--set name=../x: name: expected a name"),
    option("--only of an unknown field", ("--only", "metod=x"), "--only metod=x: ", "did you mean 'method'?"),
    option("--only without =", ("--only", "lr"), "--only lr: expected FIELD=VALUE"),
    option("--only of nothing", ("--only", "lr=5"), "--only lr=5: ", "here lr is one of: 0.1, 0.2"),
    option("--limit 0", ("--limit", "0"), "--limit 0: expected at least 1 run"),
]


@pytest.fixture
def refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Call the entry point in an empty folder with mistaken arguments; return its standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLBENCH_STORE", raising=False)

    def call(*arguments: str) -> str:
        monkeypatch.setattr("sys.argv", ["flbench", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        assert caught.value.code == 2
        return capsys.readouterr().err

    return call


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.what)
def test_bad_input_is_one_message_and_exit_code_2(case: Case, tmp_path: Path, refusal: Callable[..., str]) -> None:
    path = tmp_path / "spec.yaml"
    text = case.text if isinstance(case.text, bytes) else case.text.encode()
    path.write_bytes(text if case.whole else HEAD.encode() + text)
    message = refusal("sweep", str(path), *case.options)
    for part in case.says:
        assert part in message
    assert message.startswith("error: ")
    assert message.count("\n") == 1, "one line"
    assert len(message) < 1500
    assert sorted(tmp_path.iterdir()) == [path], "nothing was written"


def test_a_missing_file_lists_the_files_beside_it(tmp_path: Path, refusal: Callable[..., str]) -> None:
    (tmp_path / "there.yaml").touch()
    message = refusal("sweep", str(tmp_path / "their.yaml"))
    assert "their.yaml: no such file" in message and "there.yaml" in message
    assert "got a directory" in refusal("sweep", str(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("lr=fast",), "lr=fast: lr: expected a number, got 'fast'"),
        (("lrr=1",), "lrr=1: unknown field 'lrr' of a federated experiment; did you mean 'lr'?"),
        (("kind=rank", "alpha=1"), "alpha=1: unknown field 'alpha' of a rank experiment; known: activation, "),
        (("partition={classes: 2}",), 'write "classes:2", without a space, or {name: classes, its fields}'),
        (("partition=classes",), "partition.n: a value is required here, e.g. classes:2"),
        (("norm",), "norm: expected FIELD=VALUE"),
        (("E=1", "local_steps=2"), "local_steps is given twice: E=1 and local_steps=2"),
        (("method={name: fedprox, mu: 0.9}", "method.mu=0.2"), "method.mu is given twice: inside method"),
        (("method.mu=0.2", "method={name: fedprox, mu: 0.9}"), "method.mu is given twice: inside method"),
        (("partition=dirichlet:0.1", "partition.beta=0.2"), "partition.beta is given twice: inside partition"),
        (("dataset=table:F.csv",), "target: a value is required here, e.g. {name: table, path: F.csv, target: TARGET}"),
        (("method=fedbabu", "train=norm", "norm=ln"), "fedbabu has a rule for the rows of the head, and with"),
        (("method=fedavgg",), "did you mean 'fedavg'?"),
        (("seed=-1",), "seed=-1: seed: expected a value of at least 0"),
        (("model=cnn",), "model=cnn: model: cnn on digits: images of 8x8 pixels are too small"),
        (("kind=x",), "kind=x: kind: unknown kind 'x'"),
        (("kind=sharpness", "norm=ln"), "norm=ln: norm: unknown field 'norm' of a sharpness experiment"),
        (("kind=sharpness", "rounds=3"), "rounds=3: rounds: nothing trains without lr"),
    ],
)
def test_bad_arguments_of_a_single_run(
    arguments: tuple[str, ...], says: str, tmp_path: Path, refusal: Callable[..., str]
) -> None:
    assert says in refusal("run", *arguments)
    assert not list(tmp_path.iterdir())
