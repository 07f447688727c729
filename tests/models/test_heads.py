"""Heads: their formulas, their invariants, what stays fixed in training, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flbench.config import InvalidExperiment, parse_experiment
from flbench.models.head_layers import FixedHead
from flbench.models.network import buffers_that_are, head_weight
from flbench.registry import HEADS, METHODS, NORMS
from tests.models.networks import SMALL, fitting, images_for, small
from tests.mutation.mutations import mutations_of
from tests.toys import everything, toy_trainer, train

FIXED: list[Any] = ["frozen", {"name": "frozen", "variant": "spherefed"}, "etf", {"name": "etf", "learned": True}]
BOUNDED: list[tuple[Any, float]] = [
    ("cosine", 10.0),
    ({"name": "cosine", "scale": 4}, 4.0),
    ({"name": "frozen", "variant": "spherefed", "scale": 3}, 3.0),
    ({"name": "etf", "scale": 2.5}, 2.5),
    ("etf", 10.0),
]


def arrays(network: torch.nn.Module) -> dict[str, Any]:
    tensors = [*network.named_parameters(), *network.named_buffers()]
    return {name: leaf.detach().numpy() for name, leaf in tensors}


def unit_rows(x: Any) -> Any:
    return x / np.maximum(np.sqrt((x * x).sum(-1, keepdims=True)), 1e-5)


def expected_logits(head: Any, weights: dict[str, Any], features: Any) -> Any:
    """The formulas, in numpy."""
    name, rows = (head if isinstance(head, str) else head["name"]), weights["head.weight"]
    scale = 1.0 if isinstance(head, str) else head.get("scale", 1.0)
    if name == "linear":
        return features @ rows.T + weights.get("head.bias", 0.0)
    if name == "projection":
        hidden = np.maximum(features @ weights["projection.0.weight"].T + weights["projection.0.bias"], 0)
        out = hidden @ weights["projection.2.weight"].T + weights["projection.2.bias"]
        return out @ rows.T + weights["head.bias"]
    if head == "frozen":
        return features @ rows.T
    return scale * unit_rows(features) @ unit_rows(rows).T


@pytest.mark.parametrize("model", SMALL)
@pytest.mark.parametrize(
    "head",
    [
        "linear",
        {"name": "projection", "hidden": 5, "out": 4},
        "projection",
        "frozen",
        {"name": "cosine", "scale": 7},
        {"name": "cosine", "scale": 2, "learned": True},
        {"name": "frozen", "variant": "spherefed", "scale": 3},
        {"name": "etf", "scale": 5},
        {"name": "etf", "scale": 5, "learned": True},
    ],
    ids=str,
)
def test_formula(head: Any, model: str) -> None:
    network, plain = small(model, head=head, bias=True), small(model, bias=True)
    images = images_for(model, 4)
    features = plain(images)[0].detach().numpy()  # the trunk's weights do not depend on the head
    seen, logits = network(images)
    np.testing.assert_allclose(
        logits.detach().numpy(), expected_logits(head, arrays(network), features), rtol=1e-7, atol=1e-9
    )
    assert head_weight(network) == "head.weight"
    rows = dict(network.named_parameters()) | dict(network.named_buffers())
    assert rows["head.weight"].shape == (3, seen.shape[1]), "features are the input of the last layer"
    assert ("head.scale" in rows) == (not isinstance(head, str) and "learned" in head)


def test_a_cosine_head_starts_with_the_rows_of_the_linear_one() -> None:
    assert torch.equal(small("mlp").head.weight, small("mlp", head="cosine").head.weight)  # type: ignore[arg-type]


@pytest.mark.parametrize("classes", [2, 3, 6])
@pytest.mark.parametrize("seed", [0, 1])
def test_rows_of_a_simplex(classes: int, seed: int) -> None:
    rows = arrays(small("mlp", head="etf", classes=classes, seed=seed))["head.weight"]
    cosines = rows @ rows.T
    expected = np.full((classes, classes), -1 / (classes - 1))
    np.fill_diagonal(expected, 1.0)
    np.testing.assert_allclose(cosines, expected, atol=1e-6)
    np.testing.assert_allclose(rows.sum(0), 0, atol=1e-6)


@pytest.mark.parametrize("classes", [1, 3, 6])
def test_frozen_rows_are_orthonormal_and_drawn_from_the_seed(classes: int) -> None:
    rows = [arrays(small("mlp", head="frozen", classes=classes, seed=seed))["head.weight"] for seed in (0, 0, 1)]
    np.testing.assert_allclose(rows[0] @ rows[0].T, np.eye(classes), atol=1e-6)
    assert (rows[0] == rows[1]).all() and (rows[0] != rows[2]).any()


def test_orthonormal_rows_have_no_preferred_sign() -> None:
    """A decomposition alone has its signs from the algorithm: in one dimension always +1."""
    generator = torch.random.get_rng_state()
    layer = FixedHead(1, 1, 1.0, simplex=False, unit_features=False)
    signs = set()
    for seed in range(12):
        torch.manual_seed(seed)
        layer.reset_parameters()
        signs.add(float(layer.weight))
    torch.random.set_rng_state(generator)
    assert signs == {-1.0, 1.0}


@pytest.mark.parametrize("head", ["cosine", "etf"])
def test_features_almost_without_length(head: str) -> None:
    """Their norm counts as 1e-5, and is computed in float32 at least."""
    layer = small("mlp", head=head).head
    unit = torch.nn.functional.normalize(torch.randn(4, 6, dtype=torch.float64), dim=1)
    torch.testing.assert_close(layer(1e-6 * unit), layer(unit) / 10)
    coarse = unit.to(torch.bfloat16)
    found = layer.float()(coarse)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, layer(coarse.float()), rtol=0, atol=0)


#: A projection of 6 features, the width of its first layer and that of its second; by default as in MOON's code.
PROJECTIONS: list[tuple[Any, int, int]] = [
    ("projection", 6, 256),
    ({"name": "projection", "hidden": 5, "out": 4}, 5, 4),
]


@pytest.mark.parametrize(("spec", "hidden", "out"), PROJECTIONS, ids=str)
def test_the_sizes_of_a_projection(spec: Any, hidden: int, out: int) -> None:
    head = HEADS.parse(spec)
    layers = head.projection(6, bias=False)
    assert head.width(6) == out
    assert [tuple(leaf.shape) for leaf in layers.parameters()] == [(hidden, 6), (out, hidden)]


@pytest.mark.parametrize(("head", "bound"), BOUNDED, ids=str)
def test_logits_are_bounded_and_blind_to_the_length_of_the_features(head: Any, bound: float) -> None:
    layer = small("mlp", head=head).head
    features = 100 * torch.randn(50, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    logits = layer(features)
    assert logits.abs().max() <= bound * (1 + 1e-9)
    torch.testing.assert_close(layer(features * torch.rand(50, 1, dtype=torch.float64).add(0.1)), logits)
    parallel = layer(arrays_to_tensor(layer.weight))
    assert parallel.diagonal().allclose(torch.full((3,), bound, dtype=torch.float64), rtol=1e-6)


def arrays_to_tensor(weight: Any) -> Tensor:
    return torch.as_tensor(weight).detach()


def test_a_frozen_head_of_free_features_is_not_bounded() -> None:
    layer = small("mlp", head={"name": "frozen", "scale": 2}).head
    x = torch.randn(4, 6, dtype=torch.float64)
    torch.testing.assert_close(layer(3 * x), 3 * layer(x))
    torch.testing.assert_close(layer(x), 2 * x @ arrays_to_tensor(layer.weight).T)


@pytest.mark.parametrize(
    ("method", "head", "executor"),
    [
        *[("fedavg", head, executor) for head in FIXED for executor in ("loop", "stacked")],
        *[(name, FIXED[-1], "stacked") for name in ("fedbn", "local-only", "moon", "scaffold")],
    ],
    ids=str,
)
def test_fixed_rows_do_not_move_by_a_bit(method: str, head: Any, executor: str) -> None:
    """Not by averaging over clients of unequal sizes, nor on the clients of methods that keep parts."""
    trainer = toy_trainer(METHODS.parse(method), head=HEADS.parse(head), norm="bn", executor=executor)
    before = {name: leaf.clone() for name, leaf in everything(trainer).items()}
    train(3, trainer)
    after = everything(trainer)
    rows = [name for name in after if name.endswith("/head.weight")]
    assert rows and all(torch.equal(before[name], after[name]) for name in rows)
    if method != "local-only":
        moved = [name for name in after if name.startswith("x/trunk") and not torch.equal(before[name], after[name])]
        assert moved and "x/head.weight" not in after
    if not isinstance(head, str) and head.get("learned"):
        scales = [name for name in after if name.endswith("/head.scale") and name.split("/")[0] in ("x", "local")]
        assert scales and all(not torch.equal(before[name], after[name]) for name in scales)


def test_fixed_rows_are_neither_sent_nor_counted() -> None:
    assert buffers_that_are("constants", small("mlp", head="etf")) == {"head.weight"}
    assert not buffers_that_are("constants", small("mlp", "bn", head="cosine"))
    linear, frozen = (toy_trainer(METHODS.parse("fedavg"), head=head) for head in ("linear", "frozen"))
    train(1, linear, frozen)
    rows = 3 * 6 * 8  # of the head, in float64
    assert linear.bytes_up - frozen.bytes_up == linear.bytes_down - frozen.bytes_down == 3 * rows


def test_a_linear_head_is_not_part_of_the_run_id() -> None:
    plain = parse_experiment({})
    for head in ("linear", {"name": "linear"}):
        assert parse_experiment({"head": head}).run_id == plain.run_id
    ids = {parse_experiment({"head": head}).run_id for head in ("linear", "cosine", "etf", "frozen", "projection")}
    assert len(ids) == 5
    assert parse_experiment(parse_experiment({"head": "etf"}).to_json()) == parse_experiment({"head": "etf"})


@pytest.mark.parametrize("head", ["frozen", "etf"])
@pytest.mark.parametrize("kind", ["federated", "centralized"])
def test_more_classes_than_features_are_refused(head: str, kind: str) -> None:
    with pytest.raises(InvalidExperiment, match=r"10 classes need at least as many features as rows, and .* has 8"):
        parse_experiment({"kind": kind, "head": head, "model": {"name": "mlp", "widths": [8]}})


@pytest.mark.parametrize("head", ["frozen", "etf"])
def test_as_many_classes_as_features_are_accepted(head: str) -> None:
    assert parse_experiment({"head": head, "model": {"name": "mlp", "widths": [10]}})
    assert HEADS.parse("etf").problem(6, 2) is None
    assert HEADS.parse("etf").problem(6, 1) == "a simplex needs at least 2 classes"
    assert HEADS.parse("frozen").problem(6, 1) is None


def test_a_projection_belongs_to_the_body() -> None:
    """For ``train: head``, for FedPer, FedRep and FedBABU alike."""
    head, of_body = {"name": "projection", "hidden": 5, "out": 4}, {"projection.0.weight", "projection.2.weight"}
    trained = {"head.weight"}
    assert toy_trainer(METHODS.parse("fedavg"), head=head, trained="head").x.keys() == trained
    assert toy_trainer(METHODS.parse("fedavg"), head=head, trained="head+projection.*").x.keys() == trained | of_body
    for name in ("fedper", "fedrep", "fedbabu"):
        trainer = toy_trainer(METHODS.parse(name), head=head, steps=1)
        assert trainer.local.keys() == (set() if name == "fedbabu" else trained)
        before = trainer.x
        train(1, trainer)
        assert (
            of_body
            <= {leaf for leaf, now in trainer.x.items() if not torch.equal(now, before[leaf])}
            <= {leaf for leaf in before if not leaf.startswith("head.")}
        )


def test_an_unknown_head_names_the_nearest() -> None:
    with pytest.raises(InvalidExperiment, match=r"unknown head 'cosin'.*cosine"):
        parse_experiment({"head": "cosin"})
    with pytest.raises(InvalidExperiment, match=r"greater than 0|> 0"):
        parse_experiment({"head": {"name": "cosine", "scale": 0}})


def test_a_method_that_trains_the_rows_refuses_fixed_ones() -> None:
    assert parse_experiment({"method": "fedaws", "head": "cosine"})
    with pytest.raises(InvalidExperiment, match=r"fedaws has a rule for .* those of head: etf are fixed"):
        parse_experiment({"method": "fedaws", "head": "etf"})


@pytest.mark.parametrize("head", ["cosine", {"name": "frozen", "variant": "spherefed"}, "etf"], ids=str)
def test_a_norm_that_only_scales_features_is_refused_where_the_head_does_not_see_lengths(head: Any) -> None:
    images = images_for("mlp", 4)
    logits = [small("mlp", norm, head=head)(images)[1] for norm in ("none", "fn")]
    torch.testing.assert_close(*logits, rtol=1e-12, atol=1e-12)
    for kind in ("federated", "centralized"):
        with pytest.raises(InvalidExperiment, match=r"fn only scales the features, .* use norm: none"):
            parse_experiment({"kind": kind, "norm": "fn", "head": head})
    accepted = [("fn", "linear"), ("fn", "frozen"), ("fn", "projection"), ("fn-layerwise", head), ("ln", head)]
    assert all(parse_experiment({"norm": norm, "head": seeing}) for norm, seeing in accepted)


def test_a_model_that_builds_itself_has_a_head_of_its_own() -> None:
    assert parse_experiment({"model": "simple-vit"})
    with pytest.raises(InvalidExperiment, match="the model builds its own head: use head: linear"):
        parse_experiment({"model": "simple-vit", "head": "cosine"})


def test_every_norm_has_every_head() -> None:
    for head, norm in [*(("etf", norm) for norm in NORMS.classes), *((head, "fn") for head in HEADS.classes)]:
        for model in fitting(norm):
            features, logits = small(model, norm, head=head)(images_for(model, 4))
            assert logits.shape == (4, 3), (head, norm, model)
            assert torch.isfinite(features).all() and torch.isfinite(logits).all(), (head, norm, model)


#: Of the heads and of their layers; ``tests/mutation`` shows which test detects which.
MUTATIONS = (
    *mutations_of(
        "models.heads.base",
        ("no bias", "bias=bias)", "bias=False)"),
        ("always a bias", "bias=bias)", "bias=True)"),
        ("rows count as fixed", "trained: ClassVar[bool] = True", "trained: ClassVar[bool] = False"),
        ("features count as unit", '"""\n        return False', '"""\n        return True'),
    ),
    *mutations_of(
        "models.heads.projection",
        (
            "no ReLU",
            "Dense(features, hidden, bias=bias), Relu(), ",
            "Dense(features, hidden, bias=bias), nn.Identity(), ",
        ),
        ("width of the features", "        return self.out\n", "        return 6\n"),
        ("hidden ignored", "self.hidden or features", "features"),
        ("hidden like the output", "self.hidden or features", "self.hidden or self.out"),
        ("first layer without bias", "Dense(features, hidden, bias=bias)", "Dense(features, hidden, bias=False)"),
        ("second layer without bias", "Dense(hidden, self.out, bias=bias)", "Dense(hidden, self.out, bias=False)"),
        ("another width by default", "= 256", "= 128"),
        ("another hidden width by default", "| None = None", "| None = 84"),
    ),
    *mutations_of(
        "models.heads.unit",
        ("the scale of cosines by default", "scale: _Scale = 10.0", "scale: _Scale = 16.0"),
        ("frozen's scale by default", "scale: _Scale = 1.0", "scale: _Scale = 2.0"),
        ("the scale of cosines learned by default", "learned: bool = False", "learned: bool = True"),
        ("cosine's scale never learned", "self.scale, learned=self.learned)", "self.scale, learned=False)"),
        ("the frame's scale never learned", "unit_features=True, learned=self.learned)", "unit_features=True)"),
        (
            "cosine ignores its scale",
            "CosineHead(features, classes, self.scale,",
            "CosineHead(features, classes, 10.0,",
        ),
        ("frozen ignores its scale", "classes, self.scale, simplex=False", "classes, 1.0, simplex=False"),
        ("the frame ignores its scale", "classes, self.scale, simplex=True", "classes, 10.0, simplex=True"),
        ("orthonormal for the frame", "simplex=True", "simplex=False"),
        ("the frame for orthonormal", "simplex=False", "simplex=True"),
        ("the frame of free features", "unit_features=True, learned", "unit_features=False, learned"),
        ("variants swapped", 'self.variant == "spherefed"', 'self.variant == "fedbabu"'),
        ("SphereFed by default", '= "fedbabu"', '= "spherefed"'),
        ("fixed rows count as trained", "trained: ClassVar[bool] = False", "trained: ClassVar[bool] = True"),
        ("as many classes as features refused", "classes <= features", "classes < features"),
        ("more classes than features accepted", "classes <= features", "classes <= 2 * features"),
        ("a frame of one row", "classes < 2 else", "classes < 1 else"),
        ("a frame of two rows refused", "classes < 2 else", "classes < 3 else"),
        (
            "cosines see lengths",
            "unit_features(self) -> bool:\n        return True",
            "unit_features(self) -> bool:\n        return False",
        ),
    ),
    *mutations_of(
        "models.head_layers",
        ("no scale", "return logits * (", "return logits + 0 * ("),
        ("initial scale 1", "nn.init.constant_(self.scale, self.initial_scale)", "nn.init.constant_(self.scale, 1.0)"),
        ("learned scale ignored", "self.initial_scale if self.scale is None else", "self.initial_scale if True else"),
        ("scales of a stack by class", "self.scale.unsqueeze(-1)", "self.scale"),
        ("other initial rows", "a=math.sqrt(5)", "a=1.0"),
        ("a cosine head of free features", "product(_unit(x), _unit(self.weight))", "product(x, _unit(self.weight))"),
        ("a cosine head of free rows", "product(_unit(x), _unit(self.weight))", "product(_unit(x), self.weight)"),
        ("fixed rows are averaged", 'frozenset({"weight"})', "frozenset()"),
        ("signs of the algorithm", " * upper_YY.diagonal().sign()", ""),
        ("rows not orthogonal", "rows_YD = (basis_DY *", "rows_YD = (basis_DY.cumsum(1) *"),
        ("the frame's rows are short", "math.sqrt(classes / (classes - 1)) *", ""),
        ("the frame's rows are long", "classes / (classes - 1)", "(classes + 1) / (classes - 1)"),
        ("the frame is not centred", "(rows_YD - rows_YD.mean(0))", "rows_YD"),
        ("the frame is centred by feature", "rows_YD.mean(0)", "rows_YD.mean(1, keepdim=True)"),
        ("never a frame", "        if self.simplex:\n", "        if False:\n"),
        ("always unit features", "_unit(x) if self.unit_features else x", "_unit(x)"),
        ("never unit features", "_unit(x) if self.unit_features else x", "x"),
        ("no floor of the norm", "eps=EPS", "eps=1e-12"),
        ("norms of the batch", "dim=-1, eps=EPS", "dim=-2, eps=EPS"),
        ("norms in the features' precision", "at_least_float(x)", "x"),
    ),
)
