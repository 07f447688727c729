"""Numbers in docs, recomputed from the committed results with pandas and scipy only; ``tests/audit`` has the others.

This file imports nothing from flbench: otherwise an error in flbench could be in both numbers.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

ROOT = Path(__file__).parents[1]


@cache
def runs(name: str) -> pd.DataFrame:
    """Return the runs of an exported file: the experiment's fields, the first and last record, whether it diverged."""
    table = pd.read_parquet(ROOT / "results" / f"{name}.parquet", columns=["experiment", "result", "metrics"])
    rows = []
    for experiment, result, metrics in table.itertuples(index=False):
        fields = json.loads(experiment)
        records = [json.loads(line) for line in metrics.splitlines()]
        method, norm, partition = (fields.get(part) or {} for part in ("method", "norm", "partition"))
        fields |= {"method": method.get("name"), "norm": norm.get("name") if norm else None, "settings": norm}
        fields |= {"partition": (partition.get("name"), partition.get("n", partition.get("beta")))}
        own = records[-1] if records else {}
        fields["acc"] = own.get("acc_global" if "acc_personal" in own else "acc")
        fields |= {"first": records[0] if records else {}, "last": own}
        fields["diverged"] = json.loads(result)["status"] == "diverged"
        rows.append(fields)
    return pd.DataFrame(rows)


def cell(name: str, **where: Any) -> pd.Series:
    """Return the accuracies in percent of the runs with these fields, indexed by seed."""
    found = runs(name)
    for field, value in where.items():
        found = found[[one == value for one in found[field]]]
    assert found["seed"].is_unique and len(found), (name, where)
    return 100 * found.set_index("seed")["acc"].astype(float).sort_index()


def tables(text: str) -> list[list[list[str]]]:
    """Return the tables of a Markdown text as rows of cells, without their heads."""
    found = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    return [[[part.strip() for part in line.strip("|").split("|")] for line in one.splitlines()[2:]] for one in found]


def prose(name: str) -> str:
    """Return a document as one line, so that line breaks do not matter for finding a sentence."""
    return " ".join((ROOT / name).read_text(encoding="utf-8").split())


ONE = ("classes", 1)


def test_the_sentences_of_results() -> None:
    text = prose("docs/answers/label-skew-paper.md") + prose("docs/results/README.md")
    of_steps = runs("cifar10_one_step")
    first = of_steps[(of_steps.seed == 0) & (of_steps.partition == ONE)].set_index(["method", "norm", "lr"])["first"]
    lengths = {norm: first["fedavg", norm, 0.01]["probes"]["features"]["norm"] for norm in ("none", "fn")}
    assert f"features are {lengths['fn'] / lengths['none']:.0f} times as long before training" in text
    central = {norm: cell("cifar10", kind="centralized", norm=norm).item() for norm in ("none", "fn")}
    assert f"({central['none']:.2f} against {central['fn']:.2f} with fn)" in text


def test_sharpness_in_why() -> None:
    text, found = prose("docs/why.md"), runs("sharpness")
    found = found[found["lr"].isna() & (found["outputs"] == 1) & found["samples"].isna()]
    value = found.assign(value=[last["lambda_max"] for last in found["last"]]).groupby(
        ["activation", "normalized", "width"]
    )
    of = value["value"].agg(["mean", "std", "median"])
    for activation in ("relu", "tanh"):
        assert "{mean:.0f} ± {std:.0f} against".format(**of.loc[activation, "none", 1600]) in text
    medians = [f"{of.loc['tanh', 'mean-last', width]['median']:.2f}" for width in (50, 400, 800, 1600)]
    assert "medians are {} at M = 50 and {}, {} and {} at 400, 800 and 1600".format(*medians) in text


def test_feature_collapse_in_why() -> None:
    text, found = prose("docs/why.md"), runs("feature_collapse")

    def seen(method: str, norm: str, when: str, probe: str = "features") -> pd.DataFrame:
        same = found[(found["method"] == method) & (found["norm"] == norm)].sort_values("seed")
        return pd.DataFrame([record["probes"][probe] for record in same[when]])

    shares = {norm: 100 * seen("local-only", norm, "last")["first_share"].mean() for norm in ("none", "fn")}
    before = {norm: 100 * seen("local-only", norm, "first")["first_share"].mean() for norm in ("none", "fn")}
    said = f"has {shares['none']:.1f} % of all squares without normalization and {shares['fn']:.1f} % with FN"
    assert f"{said} ({before['none']:.0f} and {before['fn']:.0f} % before)" in text
    grown = seen("local-only", "none", "last")["norm"] / seen("local-only", "none", "first")["norm"]
    assert f"features become {stats.gmean(grown):.1f} times as long" in text
    averaged = {norm: 100 * seen("fedavg", norm, "last")["first_share"] for norm in ("none", "fn")}
    gap = averaged["none"] - averaged["fn"]
    said = (
        f"the share is {averaged['none'].mean():.1f} % without normalization and {averaged['fn'].mean():.0f} % with FN"
    )
    half = stats.t.ppf(0.975, len(gap) - 1) * stats.sem(gap)
    assert f"{said} (less by {gap.mean():.1f} ± {half:.1f} points" in text
    lost = {norm: seen("fedavg", norm, "last", "overfit") for norm in ("none", "fn")}
    none, fn = (100 * (one["mean_before"] - one["mean_after"]).mean() for one in lost.values())
    assert f"cost the global model of FedAvg {none:.1f} points" in text and f"{fn:.1f} with FN (3 seeds" in text


def test_ranks_of_shifted_networks_in_why() -> None:
    found = runs("rank")
    deep = found[(found["normalized"] == "bn") & (found["depth"] == 32) & (found["rounds"] == 15)]
    ranks = deep.assign(rank=[first["rank"] for first in deep["first"]]).groupby(["shift", "seed"])["rank"].first()
    said = []
    for shift in (0.0, 0.05, 0.1):
        same = ranks[shift]
        digits = 2 if shift == 0.1 else 1
        half = stats.t.ppf(0.975, len(same) - 1) * stats.sem(same)
        said.append(f"{same.mean():.{digits}f} ± {half:.{digits}f}")
    sentence = f"shifts of 0, 0.05, 0.1 and 1 leave ranks of {', '.join(said)} and {ranks[1.0].mean():.2f}"
    assert sentence in prose("docs/why.md")


def spread(values: list[float]) -> str:
    """Return the median, minimum and maximum as the tables of speeds have them."""
    return "{} ({} to {})".format(
        *(f"{v:.0f}" if v >= 100 else f"{v:#.3g}" for v in (np.median(values), min(values), max(values)))
    )


def test_the_table_of_other_frameworks() -> None:
    task = json.loads((ROOT / "benchmarks" / "speedups.json").read_text(encoding="utf-8"))["task"]
    page = (ROOT / "docs/engine.md").read_text(encoding="utf-8")
    _, between, _ = re.split("<!-- (?:begin|end): benchmarks/speedups.py -->", page)
    (table,) = tables(between)
    timed = {row["name"]: row for row in task["rows"]}
    plain = timed[task["reference"]]["seconds"]
    for name, milliseconds, ratio, accuracy in table:
        seconds = timed[name]["seconds"]
        assert milliseconds == spread([1000 * s for s in seconds]), name
        assert ratio == ("1" if seconds is plain else spread([p / s for p, s in zip(plain, seconds, strict=True)]))
        assert accuracy.split()[0] == f"{100 * np.mean(timed[name]['accuracies']):.1f}"
    assert len(table) == len(timed)


def test_other_frameworks_did_the_same_work() -> None:
    task = json.loads((ROOT / "benchmarks" / "speedups.json").read_text(encoding="utf-8"))["task"]
    peers = [row for row in task["rows"] if "versions" in row]
    assert len(peers) == 3 and task["all_rounds"] == 100
    (ours,) = (row["accuracies"][0] for row in task["rows"] if row["name"] == "flbench")
    for row in task["rows"]:
        assert abs(row["accuracies"][0] - ours) < (0.005 if row in peers else 0.02), row["name"]
    assert all(row["difference"] < 0.01 for row in peers)


def test_the_table_of_settings() -> None:
    """Ratios are recomputed from the seconds of each turn, by the faster loop of that turn."""
    found = json.loads((ROOT / "benchmarks" / "settings.json").read_text(encoding="utf-8"))["settings"]
    page = (ROOT / "docs/engine.md").read_text(encoding="utf-8")
    _, between, _ = re.split("<!-- (?:begin|end): benchmarks/settings.py -->", page)
    (table,) = tables(between)
    seconds = {f"`{one['name']}`": one["seconds"] for one in found}
    assert len(table) == len(seconds)
    for name, _, milliseconds, _, *ratios in table:
        loops = [own for way, own in seconds[name].items() if way.startswith("plain")]
        ours = [own for way, own in seconds[name].items() if way.startswith("flbench")]
        assert len(loops) == 2
        assert milliseconds == spread([1000 * s for s in ours[0]]), name
        own = [spread([min(p) / s for *p, s in zip(*loops, way, strict=True)]) for way in ours]
        assert ratios == [*own, "–"][:2], name


def test_the_numbers_of_a_gpu() -> None:
    measured = json.loads((ROOT / "benchmarks" / "h200.json").read_text(encoding="utf-8"))
    parts = {part["name"]: part for part in measured["acceptance"]}
    assert [name for name, part in parts.items() if part["status"] != "passed"] == ["cifar10, profile"]
    page = (ROOT / "docs/engine.md").read_text(encoding="utf-8")
    section, text = page.partition("### Measured on one GPU")[2], prose("docs/engine.md")
    ways, projected, *_ = tables(section)
    timed = {
        clients: {way["way"]: way["round_s"] for way in parts[f"cifar10, {clients} clients"]["found"]}
        for clients in (10, 30)
    }
    assert {row[0] for row in ways} == timed[10].keys()
    for way, *cells in ways:
        assert cells == [spread([1000 * of[way][name] for name in ("min", "median", "max")]) for of in timed.values()]
    gains = [of["single kernels"]["median"] / of["one graph, streamed convolutions"]["median"] for of in timed.values()]
    assert f"is {gains[0]:.1f} times as fast as single kernels with 10 clients and {gains[1]:.1f} times with 30" in text
    for precision, *cells in projected:
        alone, together = (parts[f"cifar10, {precision}, {how}"]["found"] for how in ("one run", "runs together"))
        assert together["runs"] == 6
        assert cells == [f"{one['seconds'] / one['runs']:.0f}" for one in (alone, together)]
    assert f"All {parts['tests']['found']['passed']} tests that need a GPU passed." in text
    results = pd.read_parquet(ROOT / "results/cifar10_full_length.parquet", columns=["result"]).result
    seconds = [json.loads(result)["seconds"] for result in results]
    assert f"took {min(seconds):.0f} to {max(seconds):.0f} seconds each" in text
    # tests/engine/test_budgets.py counts both.
    gflop, gigabytes = re.findall(r"step of 10 clients computes ([\d.]+) GFLOP and moves ([\d.]+) GB", text)[0]
    floor, of_memory = float(gflop) / 67, float(gigabytes) / 4.8
    step = 1000 * timed[10]["one graph, streamed convolutions"]["median"] / 10
    assert f"this is {floor:.2f} and {of_memory:.2f} ms. A step takes {step:.2f} ms, {step / floor:.1f} times" in text


#: The folders with the files that documents name.
SOURCES = ("flbench", "tests", "benchmarks", ".ci")


def test_files_and_tests_that_pages_name_exist() -> None:
    """But for the changelog, which names files that have since been renamed."""
    found = [*ROOT.glob("*.py"), *(path for folder in SOURCES for path in ROOT.joinpath(folder).rglob("*.py"))]
    ours = {path.relative_to(ROOT).as_posix() for path in found}
    texts = {name: (ROOT / name).read_text() for name in ours if name.startswith("tests/")}
    for page in {*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md")} - {ROOT / "CHANGELOG.md"}:
        text = page.read_text()
        named = set(re.findall(r"`([\w./-]+\.py)(?:::(\w+))?`", text))
        links = {link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link}
        missing = {name for name, _ in named if not any(f"/{path}".endswith(f"/{name}") for path in ours)}
        missing |= {link for link in links if not (page.parent / link).exists()}
        missing |= {test for path, test in named if test and f"def {test}(" not in texts[path]}
        assert missing == set(), page


def test_every_cell_on_other_tools_has_its_source() -> None:
    """A cell of docs/compared.md links to where it is from, or is a dash; each named link has an address."""
    text = (ROOT / "docs/compared.md").read_text(encoding="utf-8")
    choices, *about = tables(text)
    assert len(choices[0]) == 2 and len(about) == 2
    for name, *cells in (row for table in about for row in table):
        assert [cell for cell in cells if cell != "–" and not re.search(r"\]\(.+\)|\]\[.+\]", cell)] == [], name
    assert {*re.findall(r"\]\[([\w-]+)\]", text)} == {*re.findall(r"^\[([\w-]+)\]: https://", text, re.MULTILINE)}


def test_the_numbers_of_the_questions() -> None:
    """The number to cite is in the table that it names, the two numbers of one cell are the tutorial's."""
    text, tutorial = prose("docs/faq.md"), prose("docs/tutorial.md")
    plateau = (ROOT / "docs/results/plateau.md").read_text(encoding="utf-8").partition("\n## digits, mlp(")[2]
    (row,) = re.findall(r"^\| fedavg \| ln \| linear \| .*best of \d+.* \| (.*best of.*) \|$", plateau, re.MULTILINE)
    found = re.search(r"([\d.]+) ± ([\d.]+)[^,]*<sub>sd [\d.]+, n=10</sub>.*best of (\d+)</sub>", row)
    assert found
    mean, half, rates = float(found[1]), float(found[2]), found[3]
    assert f'"{mean:.1f} ± {half:.1f} %, mean of the evaluations of rounds 960 to 1,000, ten seeds, the best of' in text
    assert f"the best of {rates} learning rates on held-out training data" in text
    table, status = re.findall(r"the tutorial ([\d.]+) in the table and ([\d.]+) in `status`", text)[0]
    assert f"| table of the sweep, `select_by: val-tail` | {table}0 |" in tutorial
    assert f"| `flbench status sweeps/norms.yaml` | {status} |" in tutorial


def test_every_page_is_in_the_navigation() -> None:
    """``mkdocs build`` warns, too, but it is not installed everywhere. What ``not_in_nav`` lists is linked alone."""
    listed = re.findall(r"^ +(?:- )?(?:[\w&', ]+: )?([\w./*-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = [path.relative_to(ROOT / "docs") for path in ROOT.glob("docs/**/*.md")]
    assert [page.as_posix() for page in pages if not any(page.match(one) for one in listed)] == []


def test_what_bf16_costs_in_accuracy() -> None:
    found = pd.read_parquet(ROOT / "results/precision.parquet", columns=["experiment", "metrics"])
    rows = []
    for experiment, metrics in zip(map(json.loads, found.experiment), found.metrics, strict=True):
        text = metrics if isinstance(metrics, str) else metrics.decode()
        accuracy = [one["acc"] for one in map(json.loads, text.splitlines()) if one["round"]]
        values = {"tail": 100 * np.mean(accuracy[-5:]), "last": 100 * accuracy[-1]}
        rows.append({"seed": experiment["seed"], "precision": experiment["precision"], **values})
    means = pd.DataFrame(rows).groupby(["precision", "seed"]).mean()
    said = []
    for name in ("tail", "last"):
        gaps = means.loc["bf16"][name] - means.loc["fp32"][name]
        error = stats.sem(gaps)
        said.append(f"{gaps.mean():+.2f} ± {stats.t.ppf(0.975, len(gaps) - 1) * error:.2f}")
        p = stats.t.sf((1 - abs(gaps.mean())) / error, len(gaps) - 1)
        assert p < 0.001 if name == "tail" else round(p, 2) == 0.10
    text = prose("docs/engine.md")
    assert f"paired by seed, is {said[0]} points" in text and f"By the last evaluation alone it is {said[1]}" in text
