"""The data set ``table``: text and parquet files, classes, features, test sets, and what is refused with its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import flbench
from flbench.data.arrays import Data
from flbench.data.datasets import load
from flbench.errors import InvalidComponent, UserError
from flbench.registry import DATASETS

ROWS = pd.DataFrame(
    {
        "age": [39, 50, 38, 20, 61, 44],
        "work": ["private", "self", "private", "gov", "self", "gov"],
        "rich": [True, False, True, False, False, True],
        "pay": [1.5, -2.0, 3.25, 0.0, 4.0, 8.0],
        "zip": [7, 9, 7, 9, 7, 9],
        "income": ["low", "high", "high", "low", "low", "high"],
        "half": ["train", "test", "train", "train", "test", "train"],
    }
)
FEATURES = [[39, 1, 1.5, 0, 1, 0, 1, 0], [50, 0, -2, 0, 0, 1, 0, 1], [38, 1, 3.25, 0, 1, 0, 1, 0]]
FEATURES += [[20, 0, 0, 1, 0, 0, 0, 1], [61, 0, 4, 0, 0, 1, 1, 0], [44, 1, 8, 1, 0, 0, 0, 1]]


def table(path: Path, **settings: Any) -> Any:
    return DATASETS.parse({"name": "table", "path": str(path), "target": "income", **settings})


def written(folder: Path, kind: str, rows: pd.DataFrame = ROWS) -> Path:
    path = folder / f"rows.{kind}"
    if kind == "parquet":
        rows.astype({"work": "category"}).to_parquet(path)
    else:
        rows.to_csv(path, index=False, sep={"csv": ",", "tsv": "\t", "txt": ";"}[kind])
    return path


@pytest.mark.parametrize("kind", ["csv", "tsv", "txt", "parquet"])
def test_columns_become_features_and_classes(tmp_path: Path, kind: str) -> None:
    data = load(table(written(tmp_path, kind), split="half", categorical=["zip"]))
    is_test = ROWS["half"] == "test"
    x, y = np.array(FEATURES, dtype=np.float32), (ROWS["income"] == "low").to_numpy().astype(int)
    assert np.array_equal(data.train.images, x[~is_test])
    assert np.array_equal(data.test.images, x[is_test])
    assert np.array_equal(data.train.labels, y[~is_test])
    assert (data.class_names, data.shape, data.white) == (("high", "low"), (8,), 1)
    assert data.notes == ("3 columns of numbers and 2 of categories are 8 features",)


def test_numbers_are_standardized_and_categories_are_not(tmp_path: Path) -> None:
    data = load(table(written(tmp_path, "csv"), split="half", drop=["zip"], standardize=True))
    own = ROWS[ROWS["half"] == "train"][["age", "rich", "pay"]].astype(float)
    expected = ((own - own.mean()) / own.std(ddof=0)).to_numpy()
    assert np.allclose(data.train.images[:, :3], expected, atol=1e-6)
    assert set(np.unique(data.train.images[:, 3:])) == {0.0, 1.0}


def big(seed: int = 0) -> pd.DataFrame:
    r = np.random.default_rng(seed)
    y = r.integers(0, 3, 300)
    return pd.DataFrame({"a": r.normal(size=300) + 3 * (y == 1), "b": r.normal(size=300) + 3 * (y == 2),
                         "who": [f"p{i % 7}" for i in range(300)], "y": y + 4})  # fmt: skip


def test_a_fraction_of_each_class_is_drawn_by_the_seed(tmp_path: Path) -> None:
    rows = big()
    path = written(tmp_path, "csv", rows.rename(columns={"y": "income"}).assign(work="x"))
    one, again, other = (load(table(path, test_fraction=0.2, split_seed=seed, drop=["who"])) for seed in (0, 0, 1))
    for data in (one, other):
        of_test = np.bincount(data.test.labels)
        assert of_test.tolist() == [int(0.2 * n + 0.5) for n in np.bincount(rows["y"] - 4)]
        assert (len(data.train.labels) + len(data.test.labels), data.class_names) == (300, ("4", "5", "6"))
        seen = {tuple(row) for half in (data.train, data.test) for row in half.images[:, :2].tolist()}
        assert len(seen) == 300
    assert one.fingerprint == again.fingerprint != other.fingerprint


def changed(column: str, row: int, value: Any) -> pd.DataFrame:
    rows = ROWS.astype({column: object})
    rows.loc[row, column] = value
    return rows


@pytest.mark.parametrize(
    ("rows", "settings", "says"),
    [
        (changed("age", 2, None), {}, r"rows\.csv:4: the column 'age' has no value; .*drop: \[age\]"),
        (changed("work", 4, "NA"), {}, r"rows\.csv:6: the column 'work' has no value"),
        (changed("income", 0, ""), {}, r"rows\.csv:2: the column 'income' has no value"),
        (changed("age", 5, "fifty"), {}, r"rows\.csv:7: the column 'age' holds 'fifty' among numbers; .*categorical:"),
        (changed("pay", 1, "inf"), {}, r"rows\.csv:3: the column 'pay' holds inf"),
        (changed("pay", 1, 1e300), {}, r"rows\.csv:3: the column 'pay' holds 1e\+300; expected .* of float32"),
        (ROWS.assign(income=[1e30, 2e30] * 3), {}, r"rows\.csv:2: the label 'income' is 1e\+30; expected classes"),
        (changed("half", 0, ""), {}, r"the column 'half' has no value; fill it in, leave the line out$"),
        (changed("half", 3, "val"), {}, r"rows\.csv:5: the column 'half' is 'val'; expected 'train' or 'test'"),
        (ROWS.assign(day="2020-01-01"), {}, r"the column 'day' holds date32\[day\]; expected .*drop: \[day\]"),
        (ROWS.assign(income=[0.5, 1, 2, 3, 4, 5]), {}, r"rows\.csv:2: the label 'income' is 0.5; expected classes"),
        (ROWS, {"target": "incme"}, "unknown column 'incme'; did you mean 'income'"),
        (ROWS, {"groups": ["writer"]}, "unknown column 'writer'"),
        (ROWS, {"drop": ["age", "work", "rich", "pay", "zip"]}, "no column is left for the features"),
        (ROWS.assign(half="train"), {}, "6 rows for training and 0 for testing"),
        (ROWS.rename(columns={"zip": "age"}), {}, "two columns have the name 'age'"),
        (pd.DataFrame({"work": [f"w{i}" for i in range(2000)], "income": 1, "half": "train"}),
         {}, "the column 'work' has 2,000 different values, and categories at most 1,000; .*drop"),
    ],
)  # fmt: skip
def test_what_a_table_lacks_is_said_with_its_line(
    tmp_path: Path, rows: pd.DataFrame, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(UserError, match=says):
        load(table(written(tmp_path, "csv", rows), **{"split": "half", **settings}))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"a,income,half\n1,x,train\n1,x\n", "cannot read .*rows.csv: CSV parse error: .*got 2"),
        (b"", "cannot read .*rows.csv"),
        (b'a,income,half\n"1\n2",x,train\n3,,test\n', "rows.csv, row 2: the column 'income' has no value"),
        (b"a,income,half\n\xff,x,train\n\xfe,x,test\n", "the column 'a' holds binary|cannot read"),
        (b"a,income,half\n1,x,train\n\n1,x,test\n", "rows.csv:3: the column 'income' has no value"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "rows.csv").write_bytes(content)
    with pytest.raises(UserError, match=says):
        load(table(tmp_path / "rows.csv", split="half"))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "give either split .* or test_fraction"),
        ({"split": "half", "test_fraction": 0.2}, "give either split"),
        ({"split": "half", "drop": ["half"]}, "the column 'half' has two uses"),
    ],
)
def test_contradictory_settings_are_refused(tmp_path: Path, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidComponent, match=says):
        table(tmp_path / "x.csv", **settings)


def test_a_table_trains_with_a_client_for_each_person(tmp_path: Path) -> None:
    path = written(tmp_path, "csv", big().assign(work="x"))
    dataset = {
        "name": "table",
        "path": str(path),
        "target": "y",
        "test_fraction": 0.2,
        "groups": ["who"],
        "drop": ["work"],
    }
    data: Data = load(DATASETS.parse(dataset))
    assert data.shape == (2,)
    curve = flbench.run(
        store=tmp_path / "store", dataset=dataset, model={"name": "mlp", "widths": [8]}, partition="by:who", clients=7,
        rounds=20, E=5, batch_size=8, lr=0.3, device="cpu",
    )  # fmt: skip
    assert curve.iloc[-1]["acc_global"] > 0.85
