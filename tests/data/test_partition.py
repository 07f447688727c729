from __future__ import annotations

import hashlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from flbench.config import parse_experiment
from flbench.data.arrays import Arrays, Data
from flbench.data.shards import Shards, matching_test_counts, split
from flbench.errors import InvalidComponent, UserError
from flbench.registry import PARTITIONS

TRAIN = np.repeat(np.arange(10), 143)
TEST = np.repeat(np.arange(10), 35)
ALL: tuple[Any, ...] = (
    *("iid", "classes:1", "classes:2", "classes:3", "dirichlet:0.1", "dirichlet:0.01", "dirichlet:100", "shards:2"),
    *("quantity:0.5", "balanced-dirichlet:0.3"),
    {"name": "classes", "n": 2, "variant": "niid-bench"},
    {"name": "dirichlet", "beta": 0.5, "variant": "niid-bench"},
)


def parted(
    text: str | dict[str, Any],
    *,
    seed: int = 0,
    clients: int = 10,
    train: np.ndarray = TRAIN,
    test: np.ndarray = TEST,
    min_size: int = 1,
    val_fraction: float = 0.0,
    server_fraction: float = 0.0,
    classes: int = 10,
) -> Shards:
    halves = (Arrays(np.zeros((len(labels), 1, 1, 1), np.uint8), labels) for labels in (train, test))
    data = Data(*halves, classes, tuple(map(str, range(classes))), 255, "0" * 16)
    kept: dict[str, float] = {"val_fraction": val_fraction, "server_fraction": server_fraction}
    return split(PARTITIONS.parse(text), data, clients=clients, min_size=min_size, seed=seed, **kept)


def counts(rows: tuple[np.ndarray, ...], labels: np.ndarray, classes: int = 10) -> np.ndarray:
    return np.stack([np.bincount(labels[mine], minlength=classes) for mine in rows])


def digest(shards: Shards) -> str:
    sha = hashlib.sha256()
    for rows in (*shards.train, *shards.val, *shards.test):
        sha.update(np.int64(len(rows)).tobytes() + rows.astype(np.int64).tobytes())
    return sha.hexdigest()


@pytest.mark.parametrize("text", ALL)
def test_every_sample_is_used_once_and_none_is_lost(text: str) -> None:
    for seed in range(20):
        shards = parted(text, seed=seed, val_fraction=0.2)
        train = np.concatenate([*shards.train, *shards.val])
        assert sorted(train) == list(range(len(TRAIN)))
        assert sorted(np.concatenate(shards.test)) == list(range(len(TEST)))
        assert all(rows.dtype == np.int64 for rows in (*shards.train, *shards.val, *shards.test))


@pytest.mark.parametrize("text", ALL)
def test_what_the_server_holds_is_dealt_to_no_client(text: str) -> None:
    for seed in range(5):
        shards = parted(text, seed=seed, val_fraction=0.2, server_fraction=0.1)
        assert len(shards.server) == round(0.1 * len(TRAIN)) and (np.diff(shards.server) > 0).all()
        assert sorted(np.concatenate([*shards.train, *shards.val, shards.server])) == list(range(len(TRAIN)))
        assert sorted(np.concatenate(shards.test)) == list(range(len(TEST)))
        dealt = np.bincount(np.delete(TRAIN, shards.server), minlength=10)
        exact = counts([np.union1d(*both) for both in zip(shards.train, shards.val, strict=True)], TRAIN)
        exact = exact * np.bincount(TEST) / dealt
        assert np.abs(counts(shards.test, TEST) - exact).max() < 1, "the test set follows what is left"
        assert {*shards.server} < {*parted(text, seed=seed, server_fraction=0.2).server}
    assert not np.array_equal(shards.server, parted(text, seed=0, server_fraction=0.1).server)
    assert len(parted(text).server) == 0


def test_a_share_of_the_server_below_a_sample_is_refused() -> None:
    with pytest.raises(UserError, match=r"server_fraction: 0.0001 of [0-9,]+ training samples leaves the server none"):
        parted("iid", server_fraction=0.0001)
    with pytest.raises(UserError, match="the set has 0; lower 'clients' or 'min_size', or 'server_fraction'"):
        parted("iid", server_fraction=0.9999)


@pytest.mark.parametrize("text", ALL)
def test_test_counts_follow_the_training_counts(text: str) -> None:
    for seed in range(20):
        shards = parted(text, seed=seed)
        exact = counts(shards.train, TRAIN) * 35 / 143
        given = counts(shards.test, TEST)
        assert np.abs(given - exact).max() < 1
        assert not given[exact == 0].any()


@pytest.mark.parametrize("text", ALL)
def test_a_seed_reproduces_its_partition_and_another_differs(text: str) -> None:
    digests = [digest(parted(text, seed=seed)) for seed in range(5)]
    assert len(set(digests)) == 5
    assert digest(parted(text, seed=3)) == digests[3]


def test_another_process_draws_the_same_partition() -> None:
    program = (
        "from tests.data.test_partition import ALL, digest, parted\n"
        "print(','.join(digest(parted(t, seed=7, val_fraction=0.1)) for t in ALL))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip().split(",") == [digest(parted(text, seed=7, val_fraction=0.1)) for text in ALL]


@pytest.mark.parametrize(
    ("n", "clients", "classes"),
    [(1, 10, 10), (2, 10, 10), (3, 10, 7), (7, 10, 7), (5, 20, 100), (2, 50, 100), (9, 11, 10), (1, 13, 5)],
)
def test_clients_hold_distinct_classes_for_all_sizes(n: int, clients: int, classes: int) -> None:
    labels = np.repeat(np.arange(classes), 30)
    for seed in range(30):
        shards = parted(f"classes:{n}", seed=seed, clients=clients, classes=classes, train=labels, test=labels)
        held = counts(shards.train, labels, classes) > 0
        assert (held.sum(axis=1) == n).all()
        chunks = held.sum(axis=0)
        assert set(chunks) <= {clients * n // classes, -(-clients * n // classes)}
        assert (chunks > clients * n // classes).sum() == clients * n % classes


def test_classes_are_cut_evenly() -> None:
    sizes = counts(parted("classes:2").train, TRAIN)
    assert sorted(sizes[sizes > 0]) == [71] * 10 + [72] * 10


def test_every_class_is_equally_likely_for_a_client() -> None:
    held = sum((counts(parted("classes:2", seed=seed).train, TRAIN) > 0).astype(int) for seed in range(300))
    # Binomial(300, 0.2): mean 60, standard deviation 6.9; 100 numbers within 4.5 of these.
    assert np.abs(held - 60).max() < 4.5 * 6.9


def test_classes_of_uneven_size() -> None:
    labels = np.repeat(np.arange(3), (10, 100, 1000))
    shards = parted("classes:2", clients=6, classes=3, train=labels, test=labels)
    assert (
        np.sort(counts(shards.train, labels, 3), axis=0)[-4:]
        == [[2, 25, 250], [2, 25, 250], [3, 25, 250], [3, 25, 250]]
    ).all()


def test_a_class_with_fewer_samples_than_holders_is_refused() -> None:
    labels = np.repeat(np.arange(2), (3, 100))
    with pytest.raises(UserError, match="class 0 has 3 training samples and cannot be cut in 5 chunks"):
        parted("classes:1", clients=10, classes=2, train=labels, test=labels)


def test_iid_pieces_are_of_equal_size() -> None:
    shards = parted("iid", clients=7)
    assert {len(rows) for rows in shards.train} == {204, 205}
    assert counts(shards.train, TRAIN).min() >= 8  # 20.4 expected


def test_shards_hold_few_classes() -> None:
    held = counts(parted("shards:2", train=np.repeat(np.arange(10), 100)).train, np.repeat(np.arange(10), 100))
    assert (held.sum(axis=1) == 100).all()
    assert ((held > 0).sum(axis=1) <= 2).all()
    assert set(held[held > 0]) == {50, 100} or set(held[held > 0]) == {50}


def test_shards_of_unsorted_labels_and_uneven_classes() -> None:
    labels = np.random.default_rng(0).integers(0, 10, 997)
    shards = parted("shards:3", clients=8, train=labels, test=labels)
    assert {len(rows) for rows in shards.train} <= {123, 124, 125, 126}
    assert (counts(shards.train, labels).sum(axis=0) == np.bincount(labels)).all()


def test_dirichlet_ranges_from_one_class_to_uniform() -> None:
    def spread(beta: float) -> float:
        return float(
            np.mean([(counts(parted(f"dirichlet:{beta}", seed=s).train, TRAIN) > 0).mean() for s in range(10)])
        )

    assert spread(0.01) < 0.25 < spread(0.1) < 0.6 < spread(1) < spread(100) == 1


def test_dirichlet_redraws_until_every_client_is_large_enough() -> None:
    for seed in range(30):
        assert min(len(rows) for rows in parted("dirichlet:0.1", seed=seed, min_size=20).train) >= 20


def test_a_satisfied_min_size_changes_nothing() -> None:
    smallest = min(len(rows) for rows in parted("dirichlet:0.5").train)
    assert digest(parted("dirichlet:0.5", min_size=smallest)) == digest(parted("dirichlet:0.5"))
    assert digest(parted("dirichlet:0.5", min_size=smallest + 1)) != digest(parted("dirichlet:0.5"))


def test_dirichlet_stops_redrawing_and_suggests_a_change() -> None:
    with pytest.raises(
        UserError, match=r"in 1,000 draws, min_size is 140; raise 'beta', or lower 'clients' or 'min_size'"
    ):
        parted("dirichlet:0.01", min_size=140)


@pytest.mark.parametrize("text", ["iid", "classes:2", "shards:2"])
def test_too_small_clients_are_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"the smallest client has \d+ training samples, min_size is 143; lower"):
        parted(text, min_size=143, val_fraction=0.1)


def test_more_clients_than_samples_are_refused() -> None:
    with pytest.raises(
        UserError, match="10 clients with at least 144 training samples each need 1440, the set has 1430"
    ):
        parted("iid", min_size=144)
    with pytest.raises(UserError, match="1430 training samples cannot be cut in 2000 shards"):
        parted("shards:200")


def test_validation_is_a_slice_of_the_training_rows() -> None:
    whole, sliced = parted("classes:2"), parted("classes:2", val_fraction=0.25)
    for client in range(10):
        assert len(sliced.val[client]) == len(whole.train[client]) // 4
        assert sorted([*sliced.val[client], *sliced.train[client]]) == list(whole.train[client])
        assert (sliced.test[client] == whole.test[client]).all()
    assert all(len(rows) == 0 for rows in whole.val)


def test_clients_without_test_data() -> None:
    shards = parted("dirichlet:0.05", clients=50, test=np.arange(10))
    assert sum(map(len, shards.test)) == 10
    assert any(len(rows) == 0 for rows in shards.test)


def test_equal_shares_are_rounded_evenly_over_clients() -> None:
    # 20 clients share every class equally; 4 test samples a class leave 0.2 for each, 40 in all: two for everybody.
    given = matching_test_counts(np.full((20, 10), 7), np.full(10, 140), np.full(10, 4))
    assert (given.sum(axis=0) == 4).all()
    assert (given.sum(axis=1) == 2).all()


def test_largest_remainders_by_hand() -> None:
    # Shares of 5 test samples: 2.5, 1.5 and 1.0 of 10 training samples split 5, 3, 2. The tie goes to the first.
    assert matching_test_counts(np.array([[5], [3], [2]]), np.array([10]), np.array([5]))[:, 0].tolist() == [3, 1, 1]
    assert matching_test_counts(np.array([[5], [0]]), np.array([5]), np.array([0])).tolist() == [[0], [0]]
    assert matching_test_counts(np.array([[0], [0]]), np.array([0]), np.array([9])).tolist() == [[0], [0]]


@pytest.mark.parametrize(
    "text",
    [
        *("classes", "classes:0", "classes:1.5", "classes:x", "shards:0", "iid:3"),
        *("dirichlet:0", "dirichlet:-1", "dirichlet:nan", "quantity", "quantity:0"),
        *("balanced-dirichlet:-1", "balanced-dirichlet:x"),
        *("domain-classes:2-x", "domain-classes:2-0-5", "domain-classes:-2", "domain-dirichlet:0"),
    ],
)
def test_impossible_settings_are_refused(text: str) -> None:
    with pytest.raises(InvalidComponent):
        PARTITIONS.parse(text)


@pytest.mark.parametrize(
    ("text", "sizes", "says"),  # sizes: classes, clients, domains
    [
        ("classes:10", (10, 1, 0), None),
        ("dirichlet:0.1", (10, 1, 0), None),
        ("domain-classes:2-2-3", (7, 12, 4), None),
        ("domain-dirichlet:0.5", (7, 12, 4), None),
        ("classes:11", (10, 10, 0), "a client cannot hold 11 classes, there are 10; use at most classes:10"),
        ("classes:1", (10, 9, 0), "9 places cannot hold 10 classes; use at least classes:2, or at least 10 clients"),
        (
            "domain-dirichlet:0.5",
            (10, 10, 0),
            "the data set has no domains; use a set that has (pacs), or classes:N or ",
        ),
        ("domain-dirichlet:0.5", (7, 10, 4), "4 domains cannot share 10 clients equally; use a multiple of 4 clients"),
        ("domain-classes:2-2-3", (7, 16, 4), "it has sizes for 3 clients of a domain, a domain has 4"),
        ("domain-classes:2-2-2", (7, 12, 4), "2-2-2 deals 6 classes, there are 7"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(text: str, sizes: tuple[int, int, int], says: str | None) -> None:
    partition = PARTITIONS.parse(text)
    assert partition.label() == text
    found = partition.misfit(*sizes)
    assert found is None if says is None else found.startswith(says)


#: Four domains of seven classes with sizes between 3 and 60; the test set has a third of each.
SIZES_DC = np.random.default_rng(0).integers(1, 21, (4, 7)) * 3
DOMAINS = ("photo", "art_painting", "cartoon", "sketch")


def domain_set() -> Data:
    def half(sizes_DC: np.ndarray, seed: int) -> Arrays:
        groups = np.random.default_rng(seed).permutation(np.repeat(np.arange(28), sizes_DC.reshape(-1)))
        return Arrays(np.zeros((len(groups), 1, 1, 1), np.uint8), groups % 7, groups // 7)

    return Data(half(SIZES_DC, 1), half(SIZES_DC // 3, 2), 7, tuple("abcdefg"), 255, "0" * 16, DOMAINS)


def domain_counts(half: Arrays, rows: tuple[np.ndarray, ...]) -> np.ndarray:
    """Samples per client, domain and class, (K, D, C)."""
    assert half.domains is not None
    groups = half.domains * 7 + half.labels
    return np.stack([np.bincount(groups[mine], minlength=28).reshape(4, 7) for mine in rows])


BY_DOMAIN = ("domain-classes:2-2-3", "domain-dirichlet:0.5", "domain-dirichlet:1")


@pytest.mark.parametrize("text", BY_DOMAIN)
def test_each_domain_is_partitioned_separately(text: str) -> None:
    data = domain_set()
    for seed in range(20):
        shards = split(PARTITIONS.parse(text), data, clients=12, min_size=1, val_fraction=0.2, seed=seed)
        train = np.concatenate([*shards.train, *shards.val])
        assert sorted(train) == list(range(len(data.train.labels)))
        assert sorted(np.concatenate(shards.test)) == list(range(len(data.test.labels)))
        everything = tuple(np.concatenate(both) for both in zip(shards.train, shards.val, strict=True))
        counts_KDC = domain_counts(data.train, everything)
        for client in range(12):
            others = np.delete(counts_KDC[client], client // 3, axis=0)
            assert not others.any()
        # The test set follows per (client, domain, class).
        tested_KDC = domain_counts(data.test, shards.test)
        assert np.abs(tested_KDC - counts_KDC / 3).max() < 1
        assert not tested_KDC[counts_KDC == 0].any()


def test_the_clients_of_a_domain_hold_two_two_and_three_classes() -> None:
    data = domain_set()
    drawn = set()
    for seed in range(20):
        shards = split(
            PARTITIONS.parse("domain-classes:2-2-3"), data, clients=12, min_size=1, val_fraction=0, seed=seed
        )
        counts_KDC = domain_counts(data.train, shards.train)
        assert (counts_KDC > 0).sum(axis=(1, 2)).tolist() == [2, 2, 3] * 4
        # Disjoint, and all samples of a class lie with its one holder.
        assert (counts_KDC.max(axis=0) == SIZES_DC).all()
        drawn |= {tuple(np.flatnonzero(counts_KDC[3 * domain, domain])) for domain in range(4)}
    assert len(drawn) > 10  # of 21 pairs: drawn anew for each domain and seed


def test_partitions_by_domain_are_reproducible_and_redrawn() -> None:
    data = domain_set()
    for text in BY_DOMAIN:
        digests = [
            digest(split(PARTITIONS.parse(text), data, clients=12, min_size=1, val_fraction=0, seed=seed))
            for seed in (0, 1, 0)
        ]
        assert digests[0] == digests[2] != digests[1]
    skewed = PARTITIONS.parse("domain-dirichlet:0.3")
    for seed in range(10):
        shards = split(skewed, data, clients=12, min_size=20, val_fraction=0, seed=seed)
        assert min(map(len, shards.train)) >= 20


def test_domain_partitions_are_checked_with_the_experiment() -> None:
    fields = {"dataset": "pacs", "model": "cnn", "clients": 12, "partition": "domain-classes:2-2-3"}
    assert parse_experiment(fields).partition.label() == "domain-classes:2-2-3"
    with pytest.raises(InvalidComponent, match="as in 2-2-3; got '2-2-3-'"):
        PARTITIONS.parse("domain-classes:2-2-3-")
    with pytest.raises(
        UserError, match=r"domain-dirichlet:0.5 of cifar10 among 10 clients: the data set has no domains"
    ):
        parse_experiment({"dataset": "cifar10", "model": "cnn", "partition": "domain-dirichlet:0.5"})
    with pytest.raises(UserError, match="4 domains cannot share 10 clients"):
        parse_experiment({**fields, "clients": 10})


def test_split_checks_what_only_the_files_define() -> None:
    half = Arrays(np.zeros((30, 1, 2, 2), np.uint8), np.arange(30) % 3)
    data = Data(half, half, 3, ("a", "b", "c"), 255, "0" * 16)
    with pytest.raises(UserError, match="classes:4 of 3 classes among 5 clients: a client cannot hold 4 classes"):
        split(PARTITIONS.parse("classes:4"), data, clients=5, min_size=1, val_fraction=0, seed=0)
    with pytest.raises(UserError, match="the data set has no domains"):
        split(PARTITIONS.parse("domain-dirichlet:1"), data, clients=4, min_size=1, val_fraction=0, seed=0)
    shards = split(PARTITIONS.parse("classes:1"), data, clients=3, min_size=1, val_fraction=0, seed=0)
    assert sorted(np.concatenate(shards.train)) == list(range(30))


def test_refilled_classes_keep_clients_to_their_proportions() -> None:
    """Among clients of one class each, some share a class, which is dealt again in the same order, and evenly."""
    one_class = {"name": "balanced-dirichlet", "beta": 1e-9, "variant": "fl-simulator"}
    shards = parted(one_class)
    held = [np.unique(TRAIN[rows]) for rows in shards.train]
    assert [len(rows) for rows in shards.train] == [143] * 10 and all(len(classes) == 1 for classes in held)
    clients_C = np.bincount(np.concatenate(held), minlength=10)
    assert clients_C.max() > 1, "a class is used up"
    np.testing.assert_array_equal(np.bincount(np.concatenate(shards.train), minlength=1430), clients_C[TRAIN])
    tests = np.concatenate(shards.test)
    assert len(np.unique(tests)) == len(tests) == 35 * (clients_C > 0).sum()
    assert all(set(TEST[rows]) <= set(classes) for rows, classes in zip(shards.test, held, strict=True))


def test_refilled_classes_follow_the_rule_of_fl_simulator() -> None:
    """The rule of dataset.py, sample by sample, has the mean and the spread of our counts."""
    beta, clients, seeds, each = 0.5, 4, 300, 25
    labels = np.repeat(np.arange(3), [10, 30, 60])
    ours = {"name": "balanced-dirichlet", "beta": beta, "variant": "fl-simulator"}
    found, expected = [], []
    for seed in range(seeds):
        rows = parted(ours, seed=seed, clients=clients, train=labels, test=labels, classes=3).train
        found.append([np.bincount(labels[own], minlength=3) for own in rows])
        draw, left = np.random.default_rng(seed), [10, 30, 60]
        ends = draw.dirichlet([beta] * 3, size=clients).cumsum(1)
        open_, counts = np.full(clients, each), np.zeros((clients, 3), dtype=int)
        while open_.any():
            client = draw.integers(clients)
            if open_[client] == 0:
                continue
            open_[client] -= 1
            while True:
                label = int(np.argmax(draw.uniform() <= ends[client]))
                if left[label] == 0:
                    left[label] = [10, 30, 60][label]
                    continue
                left[label] -= 1
                counts[client, label] += 1
                break
        expected.append(counts)
    np.testing.assert_allclose(np.mean(found, (0, 1)), np.mean(expected, (0, 1)), atol=1.0)
    np.testing.assert_allclose(np.std(found, (0, 1)), np.std(expected, (0, 1)), atol=1.0)
    np.testing.assert_allclose(np.sort(found).mean((0, 1)), np.sort(expected).mean((0, 1)), atol=1.0)
