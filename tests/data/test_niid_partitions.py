"""Partitions of NIID-Bench and FedDyn against ports of their authors' code, which share nothing with flbench.

The ports keep the authors' arithmetic and take their draws from a numpy generator. Shuffles of rows within a class,
which do not change counts, come from a generator of their own.
"""

from __future__ import annotations

import numpy as np
import pytest

from flbench.errors import UserError
from flbench.registry import PARTITIONS, InvalidComponent
from tests.data.test_partition import TRAIN, counts, parted

#: Classes of different sizes, one of them empty.
UNEVEN = np.random.default_rng(5).permutation(np.repeat(np.arange(7), (300, 20, 0, 150, 151, 90, 33)))


def label_dirichlet(y: np.ndarray, classes: int, parties: int, beta: float, draw: np.random.Generator) -> np.ndarray:
    """Port of ``noniid-labeldir``: one pass of the loop over classes."""
    batches: list[list[int]] = [[] for _ in range(parties)]
    shuffle = np.random.default_rng(99)
    for k in range(classes):
        idx_k = np.where(y == k)[0]
        shuffle.shuffle(idx_k)
        proportions = draw.dirichlet(np.repeat(beta, parties))
        proportions = np.array([p * (len(b) < len(y) / parties) for p, b in zip(proportions, batches, strict=True)])
        proportions = proportions / proportions.sum()
        proportions = (np.cumsum(proportions) * len(idx_k)).astype(int)[:-1]
        batches = [b + idx.tolist() for b, idx in zip(batches, np.split(idx_k, proportions), strict=True)]
    return np.stack([np.bincount(y[b], minlength=classes) for b in batches])


def label_quantity(y: np.ndarray, classes: int, parties: int, num: int, draw: np.random.Generator) -> np.ndarray:
    """Port of ``noniid-#label``, with Flower's draw of a class."""
    times = [0] * classes
    contain = []
    for i in range(parties):
        current = [i % classes]
        times[i % classes] += 1
        j = 1
        while j < num:
            ind = int(draw.integers(classes))
            if ind not in current:
                j += 1
                current.append(ind)
                times[ind] += 1
        contain.append(current)
    out = np.zeros((parties, classes), dtype=int)
    for i in range(classes):
        pieces = np.array_split(np.where(y == i)[0], times[i])
        ids = 0
        for j in range(parties):
            if i in contain[j]:
                out[j, i] = len(pieces[ids])
                ids += 1
    return out


def iid_diff_quantity(y: np.ndarray, classes: int, parties: int, beta: float, draw: np.random.Generator) -> np.ndarray:
    """Port of ``iid-diff-quantity``: one pass of the loop."""
    order = draw.permutation(np.sort(y))
    proportions = draw.dirichlet(np.repeat(beta, parties))
    proportions = proportions / proportions.sum()
    proportions = (np.cumsum(proportions) * len(order)).astype(int)[:-1]
    return np.stack([np.bincount(piece, minlength=classes) for piece in np.split(order, proportions)])


def feddyn(y: np.ndarray, classes: int, clients: int, alpha: float, draw: np.random.Generator) -> np.ndarray:
    """Port of FedDyn's rule ``Dirichlet``: clients and classes are drawn again until both have something left.

    With a small alpha a client may hardly ever draw the only classes that are left, and the loop does not end.
    """
    left = np.full(clients, len(y) // clients)
    priors = np.cumsum(draw.dirichlet([alpha] * classes, size=clients), axis=1)
    amount = np.bincount(y, minlength=classes)
    out = np.zeros((clients, classes), dtype=int)
    while left.sum():
        client = draw.integers(clients)
        if left[client] <= 0:
            continue
        left[client] -= 1
        while True:
            label = np.argmax(draw.uniform() <= priors[client])
            if amount[label] > 0:
                break
        amount[label] -= 1
        out[client, label] += 1
    return out


@pytest.mark.parametrize("labels", [TRAIN, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize("beta", [0.05, 0.5, 5])
def test_dirichlet_of_niid_bench_is_the_authors(labels: np.ndarray, beta: float) -> None:
    partition = PARTITIONS.parse({"name": "dirichlet", "beta": beta, "variant": "niid-bench"})
    for seed in range(40):
        sizes = np.bincount(labels, minlength=10)
        ours = partition.counts(sizes, 8, np.random.default_rng(seed))
        assert (ours == label_dirichlet(labels, 10, 8, beta, np.random.default_rng(seed))).all()
        assert (ours.sum(axis=0) == sizes).all()


@pytest.mark.parametrize(("n", "clients"), [(1, 10), (2, 10), (3, 10), (3, 23), (10, 12)])
def test_classes_of_niid_bench_are_the_authors(n: int, clients: int) -> None:
    partition = PARTITIONS.parse({"name": "classes", "n": n, "variant": "niid-bench"})
    for seed in range(40):
        ours = partition.counts(np.bincount(TRAIN), clients, np.random.default_rng(seed))
        assert (ours == label_quantity(TRAIN, 10, clients, n, np.random.default_rng(seed))).all()
        assert ((ours > 0).sum(axis=1) == n).all()


@pytest.mark.parametrize("beta", [0.1, 0.5, 50])
def test_quantity_is_the_authors(beta: float) -> None:
    partition = PARTITIONS.parse(f"quantity:{beta}")
    for labels in (TRAIN, UNEVEN):
        for seed in range(20):
            ours = partition.counts(np.bincount(labels, minlength=10), 9, np.random.default_rng(seed))
            assert (ours == iid_diff_quantity(labels, 10, 9, beta, np.random.default_rng(seed))).all()


def test_min_size_10_is_niid_benchs_loop() -> None:
    for settings in ({"name": "dirichlet", "beta": 0.1, "variant": "niid-bench"}, {"name": "quantity", "beta": 0.5}):
        partition = PARTITIONS.parse(settings)
        for seed in range(10):
            sizes = [len(rows) for rows in parted(settings, seed=seed, min_size=10).train]
            assert min(sizes) >= 10
            assert sum(sizes) == len(TRAIN)
        assert partition.draws > 1
    with pytest.raises(UserError, match="min_size is 140; raise 'beta'"):
        parted("quantity:0.1", min_size=140)


def test_quantity_is_label_uniform() -> None:
    # A client of n samples has n/10 of each class on average; 5.5 standard deviations of the hypergeometric draw.
    held = np.concatenate([counts(parted("quantity:1", seed=seed).train, TRAIN) for seed in range(50)])
    n = held.sum(axis=1, keepdims=True)
    assert (np.abs(held - n / 10) <= 5.5 * np.sqrt(n * 0.09) + 1).all()
    assert n.std() > 50


@pytest.mark.slow
@pytest.mark.parametrize("beta", [1.0, 4.0])
def test_balanced_dirichlet_has_feddyns_law(beta: float) -> None:
    """Means over 200 partitions, of clients' largest classes and of squared counts; beta is large, see ``feddyn``."""
    sizes, seeds = np.array([60, 30, 45, 15]), range(200)
    labels = np.repeat(np.arange(4), sizes)
    partition = PARTITIONS.parse(f"balanced-dirichlet:{beta}")
    ours = np.stack([partition.counts(sizes, 5, np.random.default_rng(seed)) for seed in seeds])
    theirs = np.stack([feddyn(labels, 4, 5, beta, np.random.default_rng(10_000 + seed)) for seed in seeds])
    assert (ours.sum(axis=2) == 30).all()
    assert (ours.sum(axis=1) == sizes).all()
    for statistic in (lambda one: one.max(axis=2).mean(axis=1), lambda one: (one**2).sum(axis=(1, 2)) / 150):
        first, second = statistic(ours), statistic(theirs)
        error = np.sqrt(first.var() / len(first) + second.var() / len(second))
        assert abs(first.mean() - second.mean()) < 4 * error


def test_balanced_dirichlet_deals_everything_in_equal_sizes() -> None:
    for clients in (1, 7, 13, 100):
        for beta in (1e-6, 0.01, 0.3, 100):
            shards = parted(f"balanced-dirichlet:{beta}", clients=clients)
            assert {len(rows) for rows in shards.train} <= {1430 // clients, -(-1430 // clients)}
            assert sorted(np.concatenate(shards.train)) == list(range(1430))
    assert counts(parted("balanced-dirichlet:1e6", clients=5).train, TRAIN).std() < 8  # nearly 28.6 of each class
    skewed = counts(parted("balanced-dirichlet:0.01", clients=10).train, TRAIN)
    assert np.sort(skewed, axis=1)[:, -1].mean() > 70  # of 143; 14.3 where classes are even


@pytest.mark.parametrize("beta", [1e-300, 1e-6, 1e6, 1e300])
def test_extreme_concentrations(beta: float) -> None:
    names = ("balanced-dirichlet", "quantity", "dirichlet")
    plain = [PARTITIONS.parse({"name": name, "beta": beta}) for name in names]
    variant = PARTITIONS.parse({"name": "dirichlet", "beta": beta, "variant": "niid-bench"})
    for partition in (*plain, variant):
        for seed, clients in ((0, 1), (1, 4), (2, 4)):
            dealt = partition.counts(np.bincount(TRAIN), clients, np.random.default_rng(seed))
            assert (dealt.sum(axis=0) == 143).all()
            assert (dealt >= 0).all()


def test_variants_are_named_and_leave_the_plain_id_alone() -> None:
    plain = PARTITIONS.parse("dirichlet:0.5")
    assert plain.identity() == {"name": "dirichlet", "version": 1, "beta": 0.5}
    assert PARTITIONS.parse("classes:2").identity() == {"name": "classes", "version": 1, "n": 2}
    variant = PARTITIONS.parse({"name": "dirichlet", "beta": 0.5, "variant": "niid-bench"})
    assert variant.label() == "dirichlet:0.5(variant=niid-bench)"
    with pytest.raises(InvalidComponent, match="niid-bench"):
        PARTITIONS.parse({"name": "dirichlet", "beta": 0.5, "variant": "niid"})
    unfit = PARTITIONS.parse({"name": "classes", "n": 2, "variant": "niid-bench"})
    assert "may leave a class to no client below 10 clients" in unfit.problem(10, 9)
