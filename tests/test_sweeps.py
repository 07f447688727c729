from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flbench.config import Federated, label, parse_experiment
from flbench.sweeps import SpecError, Sweep, experiment_from, load_sweep
from flbench.sweeps.ranges import expand_range
from flbench.sweeps.source import Source, read_value
from flbench.sweeps.units import parse_memory, parse_time
from tests.start_up import heavy_imports

Load = Callable[..., Sweep]

HEAD = "version: 1\nname: test\n"


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def load(text: str, *sets: str, only: tuple[str, ...] = (), limit: int | None = None) -> Sweep:
        path = tmp_path / "spec.yaml"
        path.write_text(HEAD + text)
        return load_sweep(path, sets, only, limit)

    return load


def values(sweep: Sweep, *fields: str) -> list[tuple[str, ...]]:
    return [tuple(label(getattr(run, field)) for field in fields) for run in sweep.experiments]


def ids(sweep: Sweep) -> list[str]:
    return [run.run_id for run in sweep.experiments]


# ---------------------------------------------------------------- grids


def test_a_sweep_without_axes_is_one_experiment(load: Load) -> None:
    sweep = load("base: {lr: 0.5}")
    assert ids(sweep) == [parse_experiment({"lr": 0.5}).run_id]
    assert sweep.varying == ()


def test_a_name_is_looked_up_in_sweeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path, seeds in (("sweeps/a.yaml", "[0]"), ("sweeps/paper/b.yaml", "[0, 1]")):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(f"version: 1\nname: x\nseeds: {seeds}\n")
    assert [str(load_sweep(name).path) for name in ("a", "paper/b")] == ["sweeps/a.yaml", "sweeps/paper/b.yaml"]
    Path("a").write_text("version: 1\nname: own\n")
    assert load_sweep("a").name == "own"
    with pytest.raises(SpecError, match=r"b: no such file.*there are sweeps/a\.yaml"):
        load_sweep("b")


def test_axes_are_a_product_whose_last_axis_varies_fastest(load: Load) -> None:
    sweep = load("axes: {norm: [none, ln], lr: [0.1, 0.2]}\nseeds: [3, 1]")
    assert values(sweep, "norm", "lr", "seed") == [
        ("none", "0.1", "3"),
        ("none", "0.1", "1"),
        ("none", "0.2", "3"),
        ("none", "0.2", "1"),
        ("ln", "0.1", "3"),
        ("ln", "0.1", "1"),
        ("ln", "0.2", "3"),
        ("ln", "0.2", "1"),
    ]
    assert sweep.varying == ("norm", "lr")
    assert list(sweep.cells()) == list(dict.fromkeys(run.cell_id for run in sweep.experiments))
    assert [len(runs) for runs in sweep.cells().values()] == [2] * 4


def test_zip_is_one_joint_axis(load: Load) -> None:
    sweep = load("axes: {norm: [none, ln]}\nzip: {E: [1, 10], eval_every: [20, 10]}")
    assert values(sweep, "norm", "local_steps", "eval_every") == [
        ("none", "1", "20"),
        ("none", "10", "10"),
        ("ln", "1", "20"),
        ("ln", "10", "10"),
    ]
    assert sweep.arithmetic.grids[0].axes == (("norm", 2), ("E+eval_every", 2))


def test_grids_follow_one_another_over_the_base(load: Load) -> None:
    sweep = load(
        "base: {lr: 0.5, method: fedavg}\n"
        "grids:\n"
        "  - axes: {norm: [none, ln]}\n"
        "  - set: {method: fedyogi, norm: fn}\n"
        "    axes: {method.beta1: [0.5, 0.9], lr: [0.1]}\n"
    )
    assert values(sweep, "method", "norm", "lr") == [
        ("fedavg", "none", "0.5"),
        ("fedavg", "ln", "0.5"),
        ("fedyogi(beta1=0.5)", "fn", "0.1"),
        ("fedyogi", "fn", "0.1"),
    ]
    assert [grid.cells for grid in sweep.arithmetic.grids] == [2, 2]


def test_a_grid_may_have_seeds_of_its_own(load: Load) -> None:
    text = (
        "grids:\n"
        "  - axes: {norm: [none, fn, ln]}\n"
        "  - {axes: {norm: [fn, gn]}, seeds: [1, 4]}\n"
        "  - {set: {norm: bn}, seeds: {range: [7, 8]}}\n"
        "seeds: [0, 1]"
    )
    sweep = load(text)
    seeds = {}
    for run in sweep.experiments:
        seeds.setdefault(label(run.norm), []).append(run.seed)
    assert seeds == {"none": [0, 1], "fn": [0, 1, 4], "ln": [0, 1], "gn": [1, 4], "bn": [7]}  # two grids name fn
    assert (sweep.arithmetic.seeds, sweep.arithmetic.duplicates, sweep.arithmetic.runs) == ((1, 2, 3), 1, 10)
    assert load(text, only=["seed=4"]).arithmetic.cells == 2
    assert load(text, limit=4).arithmetic.beyond_limit == 6


def test_sub_paths_reach_into_components(load: Load) -> None:
    dotted = load("axes: {norm: [gn], norm.groups: [2, 4]}")
    mapped = load("axes: {norm: [{name: gn}, {name: gn, groups: 4}]}")
    assert ids(dotted) == ids(mapped)
    assert values(load("base: {norm: gn, norm.groups: 8}"), "norm") == [("gn(groups=8)",)]


def test_a_whole_component_replaces_the_sub_fields_below_it(load: Load) -> None:
    sweep = load(
        "base: {method: fedyogi, method.beta1: 0.5}\n"
        "axes: {norm: [none, ln]}\n"
        "overrides: [{if: {norm: ln}, set: {method: fedavg}}]"
    )
    assert values(sweep, "method") == [("fedyogi(beta1=0.5)",), ("fedavg",)]


def test_kinds_mix_and_share_a_base(load: Load) -> None:
    sweep = load(
        "base: {clients: 20, lr: 0.2}\ngrids:\n  - {axes: {norm: [ln]}}\n  - {set: {kind: centralized, norm: bn}}"
    )
    assert values(sweep, "kind", "lr", "norm") == [("federated", "0.2", "ln"), ("centralized", "0.2", "bn")]
    assert isinstance(first := sweep.experiments[0], Federated)
    assert first.clients == 20


def test_anchors_and_merge_keys(load: Load) -> None:
    sweep = load("grids:\n  - set: &b {lr: 0.5, E: 3}\n  - set: {<<: *b, E: 7}\n    axes: {norm: [ln]}")
    assert values(sweep, "lr", "local_steps") == [("0.5", "3"), ("0.5", "7")]


def test_yaml_is_1_2() -> None:
    assert read_value("[1e-3, no, 010, 0x10, 2024-01-01, ~]") == [0.001, "no", 10, 16, "2024-01-01", None]
    assert [read_value("classes:1"), read_value("true"), read_value("")] == ["classes:1", True, None]


# ---------------------------------------------------------------- rules, seeds, duplicates


def test_exclude_matches_by_the_given_fields_only(load: Load) -> None:
    axes = "axes: {method: [fedavg, fedyogi], norm: [none, {name: gn, groups: 4}, gn], E: [1, 2]}\n"
    by_name = load(axes + "exclude: [{norm: gn}]")
    assert {norm for (norm,) in values(by_name, "norm")} == {"none"}
    by_setting = load(axes + "exclude: [{norm: {name: gn, groups: 4}}]")
    assert {norm for (norm,) in values(by_setting, "norm")} == {"none", "gn"}
    by_path = load(axes + "exclude: [{norm.groups: 2}]")
    assert {norm for (norm,) in values(by_path, "norm")} == {"none", "gn(groups=4)"}
    by_label = load(axes + "exclude: [{norm: gn(groups=4)}]")
    assert ids(by_label) == ids(by_setting)
    any_of = load(axes + "exclude: [{method: [fedavg, fedyogi], norm: [none, gn], E: 1}, {method: fedavg}]")
    assert values(any_of, "method", "norm", "local_steps") == [
        ("fedyogi", "none", "2"),
        ("fedyogi", "gn(groups=4)", "2"),
        ("fedyogi", "gn", "2"),
    ]
    assert any_of.arithmetic.excluded == (6, 3)


def test_exclude_matches_shorthands_defaults_and_printed_numbers(load: Load) -> None:
    axes = "axes: {partition: ['classes:2', 'classes:5', iid], lr: {logspace: [1e-3, 1e-2, 3]}}\n"
    assert load(axes + "exclude: [{partition: 'classes:2'}]").arithmetic.excluded == (3,)
    assert load(axes + "exclude: [{partition: classes}]").arithmetic.excluded == (6,)
    assert load(axes + "exclude: [{lr: 0.00316228}]").arithmetic.excluded == (3,)
    assert load(axes + "exclude: [{method: fedavg, lr: 0.001}]").arithmetic.excluded == (3,)


def test_excluding_comes_before_values_must_fit_together(load: Load) -> None:
    sweep = load("axes: {dataset: [digits, cifar10], model: [mlp, cnn]}\nexclude: {dataset: digits, model: cnn}")
    assert values(sweep, "dataset", "model") == [("digits", "mlp"), ("cifar10", "mlp"), ("cifar10", "cnn")]


def test_rules_see_the_augmentation_that_the_data_set_brings(load: Load) -> None:
    sweep = load("axes: {dataset: [digits, cifar10]}\nexclude: [{augment: flip-crop}]")
    assert values(sweep, "dataset") == [("digits",)]


def test_overrides_change_cells_and_make_none(load: Load) -> None:
    sweep = load(
        "axes: {norm: [none, ln], lr: [0.1, 0.2]}\n"
        "overrides:\n"
        "  - {if: {norm: ln}, set: {E: 3, partition: iid}}\n"
        "  - {if: {partition: iid, lr: 0.2}, set: {eval_every: 5}}\n"
    )
    assert values(sweep, "norm", "lr", "local_steps", "eval_every") == [
        ("none", "0.1", "10", "10"),
        ("none", "0.2", "10", "10"),
        ("ln", "0.1", "3", "10"),
        ("ln", "0.2", "3", "5"),
    ]
    assert sweep.arithmetic.overridden == (2, 1)
    assert sweep.varying == ("norm", "lr", "local_steps", "partition", "eval_every")


def test_duplicates_are_dropped_the_first_stays(load: Load) -> None:
    sweep = load("grids: [{axes: {lr: [0.1, 0.2]}}, {axes: {lr: [0.2, 0.3, 0.30]}}]\nseeds: {range: [0, 2]}")
    assert values(sweep, "lr") == [(lr,) for lr in ("0.1", "0.2", "0.3") for _ in range(2)]
    count = sweep.arithmetic
    assert (count.duplicates, count.cells, count.seeds, count.runs) == (2, 3, (2,), 6)
    assert len(set(ids(sweep))) == 6


def test_two_sweeps_share_the_runs_of_a_shared_cell(load: Load) -> None:
    narrow, wide = load("axes: {lr: [0.1]}"), load("axes: {lr: [0.05, 0.1], norm: [ln, none]}\nseeds: [0, 7]")
    assert set(ids(narrow)) < set(ids(wide))


# ---------------------------------------------------------------- generators and units


@pytest.mark.parametrize(
    ("generator", "expected"),
    [
        ({"logspace": [1e-2, 1, 5]}, [0.01, 0.0316227766017, 0.1, 0.316227766017, 1.0]),
        ({"linspace": [0, 0.3, 4]}, [0.0, 0.1, 0.2, 0.3]),
        ({"range": [2, 5]}, [2, 3, 4]),
    ],
)
def test_generators_give_clean_values(generator: dict[str, Any], expected: list[float]) -> None:
    assert expand_range(generator) == expected


def test_linspace_fits_whole_numbers(load: Load) -> None:
    assert values(load("axes: {clients: {linspace: [10, 30, 3]}}"), "clients") == [("10",), ("20",), ("30",)]


def test_amounts_of_memory_and_wall_times_have_units() -> None:
    amounts = {"512M": 2**29, "2G": 2**31, "1.5G": 3 * 2**29, "2GB": 2**31, "1GiB": 2**30}
    assert {text: parse_memory(text) for text in amounts} == amounts
    times = {"30m": 1800, "2h": 7200, "1h30m": 5400, "90s": 90, "1-00:00:00": 86400, "01:02:03": 3723, "2d": 172800}
    assert {text: parse_time(text) for text in times} == times


def test_the_other_keys_of_the_file(load: Load) -> None:
    sweep = load(
        "resources: {cpus: 2, gpus: 0.5, mem: 2G, time: 30m}\nretry: {max_attempts: 5}\n"
        "backend: {kind: slurm, profile: p.yaml}\nwandb: {project: x, mode: off}\n"
        "report: {metric: acc_worst, rows: method, cols: [E, norm.groups], baseline: {method: fedavg}}\n"
        "base: {norm: gn}"
    )
    spec = sweep.spec
    assert (spec.resources.cpus, spec.resources.gpus, spec.resources.mem, spec.resources.time) == (2, 0.5, 2**31, 1800)
    assert spec.retry.max_attempts == 5
    assert spec.backend.kind == "slurm"
    assert spec.wandb.mode == "off"
    assert spec.report.rows == ("method",)
    assert load("").spec.backend.kind == "local"


def test_options_may_leave_the_report_of_the_file_without_effect(load: Load) -> None:
    """The cells of the file are those that the report was written for, not the ones that a command keeps."""
    text = (
        "axes: {norm: [none, ln], lr: [0.1, 0.2], partition: [iid, 'classes:1']}\n"
        "report:\n"
        "  baseline: {norm: none}\n"
        "  headline: {partition: iid}\n"
        "  tune: [lr]\n"
        "  contrasts: [{norm: ln, against: none, between: {partition: [iid, 'classes:1']}}]\n"
    )
    whole = load(text)
    for changed in (
        load(text, "axes.norm=[ln]"),
        load(text, "axes.partition=['classes:2']"),
        load(text, "exclude=[{lr: 0.2}]"),
        load(text, only=("norm=ln", "lr=0.1", "partition=classes:1")),
        load(text, limit=1),
    ):
        assert changed.spec.report == whole.spec.report
    with pytest.raises(SpecError, match=r"spec\.yaml:4: report\.contrasts\[0\]\.norm: gn matches no cell"):
        load("axes: {norm: [none, ln]}\nreport: {contrasts: [{norm: gn, against: none}]}", "seeds=[1]")


def test_the_report_may_name_cells_of_any_grid(load: Load) -> None:
    grids = "grids: [{axes: {norm: [none, ln]}}, {set: {norm: gn}}, {set: {kind: centralized, norm: bn}}]\n"
    assert load(grids + "report: {contrasts: [{norm: [ln, gn], against: none}], baseline: {kind: centralized}}")


def test_margin_and_target_are_in_the_unit_of_the_metric(load: Load) -> None:
    assert load("report: {metric: loss, margin: 1, target: 2}").spec.report.margin == 1
    assert load("report: {margin: 0.005, target: 1}").spec.report.target == 1


# ---------------------------------------------------------------- options


def test_set_changes_the_value_at_its_path(load: Load) -> None:
    axes = "base: {rounds: 10}\naxes: {lr: [0.1, 0.2]}\n"
    assert values(load(axes, "axes.lr=[0.5]"), "lr") == [("0.5",)]
    assert values(load(axes, "axes.E=[1, 2]"), "lr", "local_steps")[1] == ("0.1", "2")
    assert values(load(axes, "base.rounds=50", "norm={name: gn, groups: 4}"), "rounds", "norm")[0] == (
        "50",
        "gn(groups=4)",
    )
    assert values(load(axes, "norm=gn", "norm.groups=4"), "norm")[0] == ("gn(groups=4)",)
    assert values(load(axes, "seeds={range: [0, 2]}"), "seed")[:2] == [("0",), ("1",)]
    assert load(axes, "resources.cpus=2").spec.resources.cpus == 2
    assert load(axes, "report.metric=acc_sd").spec.report.metric == "acc_sd"
    assert load(axes, "name=other").name == "other"
    assert load("grids: [{axes: {lr: [0.1]}}]", "grids.0.axes.lr=[0.2, 0.3]").arithmetic.runs == 2
    assert load("grids: [{axes: {lr: [0.1]}}]", "grids[0].set.E=3").experiments[0].local_steps == 3


@pytest.mark.parametrize(
    ("text", "sets", "field", "expected"),
    [
        # A complete component replaces the file's component; a setting changes one field of it.
        ("base: {method: fedprox, method.mu: 0.9}", ["method={name: fedprox, mu: 0.1}"], "method", ["fedprox(mu=0.1)"]),
        ("base: {method: fedprox, method.mu: 0.9}", ["method=fedprox"], "method", ["fedprox"]),
        ("base: {method: {name: fedprox, mu: 0.9}}", ["method.mu=0.2"], "method", ["fedprox(mu=0.2)"]),
        ("base: {partition: dirichlet:0.1}", ["partition.beta=0.5"], "partition", ["dirichlet:0.5"]),
        ("base: {model: {name: mlp, widths: [9, 9]}}", ["model.widths[1]=5"], "model", ["mlp(widths=[9, 5])"]),
        ("base: {model: mlp, model.widths: [9, 9]}", ["model.widths.0=5"], "model", ["mlp(widths=[5, 9])"]),
        ("grids: [{set: {method: fedprox}}]", ["grids[0].set.method.mu=0.3"], "method", ["fedprox(mu=0.3)"]),
        (
            "base: {probes: {features: 50, drift: 20}}",
            ["probes.drift=30"],
            "probes",
            ["[features(every=50), drift(every=30)]"],
        ),
        # Into one value of an axis.
        ("axes: {method: [fedavg, fedprox]}", ["axes.method[1].mu=0.5"], "method", ["fedavg", "fedprox(mu=0.5)"]),
        (
            "axes: {method: [fedavg, {name: fedprox, mu: 1}]}",
            ["axes.method.1.mu=2"],
            "method",
            ["fedavg", "fedprox(mu=2)"],
        ),
        ("axes: {partition: [iid, dirichlet:1]}", ["axes.partition[1].beta=2"], "partition", ["iid", "dirichlet:2"]),
        ("axes: {norm: [ln, gn]}", ["axes.norm[1]={name: gn, groups: 4}"], "norm", ["ln", "gn(groups=4)"]),
        ("zip: {norm: [ln, gn], E: [1, 2]}", ["zip.norm[1].groups=4"], "norm", ["ln", "gn(groups=4)"]),
        # A setting that is no position in an axis is another axis.
        ("axes: {method: [fedprox]}", ["axes.method.mu=[1, 2]"], "method", ["fedprox(mu=1)", "fedprox(mu=2)"]),
    ],
)
def test_set_reaches_into_components(load: Load, text: str, sets: list[str], field: str, expected: list[str]) -> None:
    assert values(load(text, *sets), field) == [(value,) for value in expected]


def test_layers_replace_one_another_in_order(load: Load) -> None:
    """Base, then the grid, then overrides in order; a component replaces the settings of those below it."""
    sweep = load(
        "base: {lr: 0.1, E: 2, method: {name: fedyogi, beta1: 0.5, tau: 0.01}}\n"
        "grids:\n"
        "  - axes: {norm: [none, ln]}\n"
        "  - {set: {lr: 0.2, method: fedyogi, norm: fn}}\n"
        "  - {set: {lr: 0.2, method.tau: 0.1, norm: fn}}\n"
        "overrides:\n"
        "  - {if: {norm: ln}, set: {E: 3, method.beta1: 0.7}}\n"
        "  - {if: {E: 3}, set: {lr: 0.4}}\n"
    )
    assert values(sweep, "norm", "lr", "local_steps", "method") == [
        ("none", "0.1", "2", "fedyogi(beta1=0.5, tau=0.01)"),
        ("ln", "0.4", "3", "fedyogi(beta1=0.7, tau=0.01)"),
        ("fn", "0.2", "2", "fedyogi"),
        ("fn", "0.2", "2", "fedyogi(beta1=0.5, tau=0.1)"),
    ]


def test_the_arithmetic_counts_cells_in_which_an_override_stayed(load: Load) -> None:
    sweep = load(
        "axes: {norm: [none, ln]}\n"
        "overrides: [{if: {method: fedavg}, set: {lr: 0.3}}, {if: {norm: ln}, set: {lr: 0.4}}]"
    )
    assert values(sweep, "lr") == [("0.3",), ("0.4",)]
    assert sweep.arithmetic.overridden == (1, 1)


def test_set_finds_a_key_under_either_name(load: Load) -> None:
    assert values(load("axes: {E: [1, 2]}", "axes.local_steps=[5]"), "local_steps") == [("5",)]
    assert values(load("base: {local_steps: 3}", "E=5"), "local_steps") == [("5",)]


def test_a_set_that_an_axis_would_hide_is_refused(load: Load) -> None:
    with pytest.raises(SpecError, match=r"--set lr=1: lr does not come from base here but from axes\.lr"):
        load("axes: {lr: [0.1]}", "lr=1")
    with pytest.raises(SpecError, match=r"from grids\.1\.set\.local_steps"):
        load("grids: [{axes: {lr: [0.1]}}, {set: {local_steps: 1}}]", "E=1")
    # With the prefix `base.` it is allowed, as long as it affects some grid.
    both = load("grids: [{axes: {lr: [0.1]}}, {axes: {norm: [ln]}}]", "base.lr=1")
    assert values(both, "lr") == [("0.1",), ("1",)]


def test_only_keeps_matching_runs(load: Load) -> None:
    axes = "axes: {method: [fedavg, scaffold, fedyogi], lr: [0.1, 0.2]}\nseeds: [0, 1]\n"
    assert set(values(load(axes, only=("method=fedavg", "lr=0.1")), "method", "lr")) == {("fedavg", "0.1")}
    assert load(axes, only=("method=fedavg", "method=scaffold")).arithmetic.cells == 4
    assert load(axes, only=("method=[fedavg, scaffold]",)).arithmetic.unselected == 2
    assert set(values(load(axes, only=("seed=1",)), "seed")) == {("1",)}
    assert set(ids(load(axes, only=("E=10",)))) == set(ids(load(axes)))


def test_only_lists_the_existing_values(load: Load) -> None:
    with pytest.raises(SpecError, match=r"^--only lr=0\.3: lr: nothing matches; here lr is one of: 0\.1, 0\.2$"):
        load("axes: {lr: [0.1, 0.2]}", only=("lr=0.3",))


def test_limit_keeps_the_first_runs(load: Load) -> None:
    whole, part = load("axes: {lr: [0.1, 0.2]}\nseeds: [0, 1]"), load("axes: {lr: [0.1, 0.2]}\nseeds: [0, 1]", limit=3)
    assert ids(part) == ids(whole)[:3]
    assert (part.arithmetic.runs, part.arithmetic.beyond_limit) == (3, 1)


def test_one_experiment_from_arguments() -> None:
    run = experiment_from(["norm={name: gn, groups: 4}", "E=3", "seed=5", "partition=dirichlet:0.1"])
    expected = {"norm": {"name": "gn", "groups": 4}, "local_steps": 3, "seed": 5, "partition": "dirichlet:0.1"}
    assert run == parse_experiment(expected)
    assert run.run_id == parse_experiment(expected).run_id
    assert experiment_from([]).run_id == Federated().run_id


# ---------------------------------------------------------------- the hash of a sweep


def test_the_hash_names_the_plan_and_nothing_else(load: Load) -> None:
    text = "base: {rounds: 10}\naxes: {lr: [0.1, 0.2]}\n"
    plan = load(text)
    assert load(text + "# a comment\nretry: {max_attempts: 7}\nreport: {metric: loss}").spec_hash == plan.spec_hash
    assert load("base: {rounds: 1e1}\naxes: {lr: [0.10, 2e-1]}").spec_hash == plan.spec_hash
    others = [load(text, change).spec_hash for change in ("rounds=11", "eval_every=1", "seeds=[1]", "axes.lr=[0.1]")]
    assert len({plan.spec_hash, *others}) == 5
    assert load(text, limit=1).spec_hash != plan.spec_hash


def test_a_sweep_remembers_its_text_and_options(load: Load) -> None:
    sweep = load("axes: {lr: [0.1, 0.2]}  # why\n", "E=3", only=("lr=0.1",), limit=5)
    assert "# why" in sweep.source
    assert sweep.options == ("--set E=3", "--only lr=0.1", "--limit 5")


# ---------------------------------------------------------------- the fast path and its slow twin

WIDE = """
base: {clients: 20, weight_decay: 1e-4}
grids:
  - axes:
      method: [fedavg, {name: fedyogi, beta1: 0.5}, scaffold]
      norm: [none, gn, {name: gn, groups: 8}, bn]
      partition: ["classes:2", "dirichlet:0.1", iid]
      dataset: [digits, cifar10]
      lr: {logspace: [1e-3, 1, 4]}
    zip: {E: [1, 10], eval_every: [20, 10]}
  - set: {method: fedyogi, participation: 0.52}
    axes: {method.tau: [0.001, 0.01], norm: [gn], norm.groups: [1, 4], momentum: [0, 0.9], bias: [true, false]}
  - set: {kind: centralized, precision: fp64}
    axes: {norm: [ln, bn], batch_size: [8, 32], augment: [none, flip-crop]}
exclude: [{method: scaffold, norm: bn}]
overrides: [{if: {partition: "dirichlet:0.1"}, set: {min_size: 5, val_fraction: 0.1}}]
seeds: [0, 1, 12345678901234567]
"""


STUDIES = """
base: {eval_every: 5}
grids:
  - set: {kind: sharpness, sigma_w2: 4}
    axes: {width: {linspace: [50, 100, 2]}, normalized: [none, bn-last], activation: [relu, tanh], samples: [20, 1e2]}
    zip: {lr: [0.1, 1e-3], rounds: [10, 20]}
  - set: {kind: sharpness, outputs: 10}
    axes: {normalized: [ln-all, mean-last], spectrum: [true, false], precision: [fp32, fp64]}
  - set: {kind: rank, rounds: 100}
    axes: {normalized: [none, bn-rms, bn], gamma: [0.1, 1], activation: [linear, relu]}
  - set: {kind: deep}
    axes: {dataset: [digits, fashion_mnist], depth: [1, 32], init: [torch, he], shift: [0, 0.1], rescale: [true, false]}
overrides: [{if: {kind: deep, depth: 1}, set: {lr: 0.1, rounds: 5}}]
seeds: [0, 3]
"""


@pytest.mark.parametrize(
    ("text", "count", "step"),
    [(WIDE, 1656, 7), (STUDIES, 2 * (2**5 + 2**3 + 3 * 2 * 2 + 2**5), 1)],
    ids=["training", "studies"],
)
def test_fast_experiments_equal_slow_ones(load: Load, text: str, count: int, step: int) -> None:
    sweep = load(text)
    assert len(sweep.experiments) == count
    for fast in sweep.experiments[::step]:
        slow = parse_experiment(fast.to_json())
        assert fast == slow
        assert (fast.run_id, fast.cell_id, hash(fast)) == (slow.run_id, slow.cell_id, hash(slow))
        assert type(getattr(fast, "lr", None)) is type(getattr(slow, "lr", None))
        assert fast.to_json() == slow.to_json()
        assert fast.evaluated_rounds() == slow.evaluated_rounds()


def test_rules_accept_fields_of_any_kind(load: Load) -> None:
    text = """
grids:
  - set: {kind: sharpness}
    axes: {normalized: [none, bn-last]}
  - set: {kind: sharpness, lr: 0.1, rounds: 5}
  - set: {kind: rank}
    axes: {normalized: [none, bn, bn-rms]}
exclude: [{kind: rank, normalized: bn}]
overrides: [{if: {rounds: 0}, set: {width: 7}}]
"""
    found = [(run.kind, run.to_json()["normalized"], run.to_json()["width"]) for run in load(text).experiments]
    assert found == [
        ("sharpness", "none", 7),
        ("sharpness", "bn-last", 7),
        ("sharpness", "none", 100),
        ("rank", "none", 32),
        ("rank", "bn-rms", 32),
    ]
    assert [run.kind for run in load(text, only=("normalized=bn-rms",)).experiments] == ["rank"]
    with pytest.raises(SpecError, match=r"normalized: expected 'none', .*, got 'bm'"):
        load(text, only=("normalized=bm",))


def test_fast_experiments_fill_in_the_augmentation_like_slow_ones(load: Load) -> None:
    for fast in load(WIDE).experiments[::31]:
        raw = {field: value for field, value in fast.to_json().items() if field != "augment"}
        assert parse_experiment(raw).augment == fast.augment or fast.kind == "centralized"


def test_garbage_collection_continues_after_loading(load: Load) -> None:
    load("axes: {lr: [0.1]}")
    assert gc.isenabled()
    with pytest.raises(SpecError):
        load("base: {model: cnn}")
    assert gc.isenabled()


def test_expanding_needs_no_heavy_import() -> None:
    """A dry run takes seconds only as long as nothing imports these packages."""
    spec = Path(__file__).parent.parent / "sweeps" / "lr_robustness.yaml"
    assert heavy_imports(f"from flbench.sweeps import load_sweep; load_sweep({str(spec)!r})")[0] == []


@pytest.mark.parametrize(
    ("name", "fewest", "most"),
    [("quickstart", 36, 60), ("smoke", 10, 40), ("lr_robustness", 300, 1000), ("dirichlet", 100, 500)],
)
def test_the_sweeps_of_the_repository(name: str, fewest: int, most: int) -> None:
    sweep = load_sweep(Path(__file__).parent.parent / "sweeps" / f"{name}.yaml")
    assert sweep.name == name
    assert fewest <= len(sweep.experiments) <= most


def test_lr_robustness_serves_cifar10() -> None:
    path = Path(__file__).parent.parent / "sweeps" / "lr_robustness.yaml"
    sweep = load_sweep(path, ["dataset=cifar10", "model=cnn"])
    assert {(label(run.dataset), label(run.model)) for run in sweep.experiments} == {("cifar10", "cnn")}


def test_lines_survive_anchors_and_lists() -> None:
    source = Source("f.yaml", "a: &x\n  - 1\n  - {b: 2}\nc:\n  <<: {d: 1}\n  e: *x\n")
    assert source.origin(("a", 1, "b")) == "f.yaml:3"
    assert source.origin(("c", "d")) == "f.yaml:5"
    assert source.origin(("c", "e", 0)) == "f.yaml:2"
    assert source.origin(("c", "missing")) == "f.yaml:4"


@pytest.mark.parametrize(
    ("field", "registers"),
    [
        ("method: nearby", "@METHODS.register('nearby')"),
        ("cohort: nearby", '@SAMPLERS.register(\n    "nearby"\n)'),
        ("kind: nearby", 'kind: Literal["nearby"] = "nearby"'),
    ],
)
def test_a_plug_in_file_beside_the_sweep_is_named(
    field: str, registers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, plugin = tmp_path / "mine.yaml", tmp_path / "mine.py"
    path.write_text(f"version: 1\nname: mine\nbase: {{{field}}}\n")
    (tmp_path / "another.py").write_text("# nearby")
    with pytest.raises(SpecError, match="if a plug-in has it, name its file with --plugin"):
        load_sweep(path)
    monkeypatch.setenv("FLBENCH_PLUGINS", str(plugin))
    plugin.write_text("")
    with pytest.raises(SpecError, match=r"; it is not registered in mine\.py$"):
        load_sweep(path)
    monkeypatch.delenv("FLBENCH_PLUGINS")
    plugin.write_text(registers)
    with pytest.raises(SpecError) as raised:
        load_sweep(path)
    assert str(raised.value).startswith(f"{path}:3: base.{field.partition(':')[0]}: unknown ")
    assert str(raised.value).endswith(f"'nearby', which {plugin} has: flbench --plugin {plugin} COMMAND")
