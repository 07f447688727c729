"""Golden numbers, invariants and mutations of FedAwS."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch

from flbench.methods.base import ServerContext, tmap
from tests.conformance.methods.cases import (
    Case,
    assert_penalty_gradient,
    batch_of,
    context_of,
    parsed,
    toy_skewed_images,
    values,
)
from tests.conformance.problem import (
    COUNTS,
    H0,
    LR,
    ROUNDS,
    SHARE,
    SIZES,
    V0,
    Array,
    Labels,
    TwoLayers,
    assert_close,
    batches,
    both_executors,
    mean,
    trained,
)
from tests.mutation.mutations import mutations_of
from tests.toys import largest_difference, toy_clients, toy_trainer

CASES = {"fedaws": Case(values=values("margin", 0.9, 0.5, 0.7, 0.9), sends=(3, 0))}


def hinge_gradients(v: Array, h: Array, pixels: Array, labels: Labels, margin: float) -> tuple[Array, Array]:
    """Return dL/dV and dL/dH of the mean of max(0, margin - cos(V p, row y of H))^2, one sample after the other."""
    dv, dh = np.zeros_like(v), np.zeros_like(h)
    for p, y in zip(pixels, labels, strict=True):
        f, w = v @ p, h[y]
        lf, lw = np.linalg.norm(f), np.linalg.norm(w)
        cos = f @ w / (lf * lw)
        slope = -2 * max(0.0, margin - cos) / len(labels)
        dv += slope * np.outer(w / (lf * lw) - cos * f / lf**2, p)
        dh[y] += slope * (f / (lf * lw) - cos * w / lw**2)
    return dv, dh


def spread_out(rows: Array, nu: float, rate: float) -> Array:
    """Return unit rows after one step that lowers the sum over ordered pairs of max(0, nu - 1 + cos)^2."""
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    slope = np.zeros_like(unit)
    for c, d in permutations(range(len(rows)), 2):
        excess = max(0.0, nu - 1 + unit[c] @ unit[d])
        slope[c] += 2 * excess * unit[d]
        slope[d] += 2 * excess * unit[c]
    moved = unit - rate * slope
    return np.asarray(moved / np.linalg.norm(moved, axis=1, keepdims=True))


AWS_SETTINGS: list[dict[str, float]] = [{}, {"margin": 0.6, "nu": 1.3, "spread": 0.05, "server_lr": 0.7}]


@both_executors
@pytest.mark.parametrize("settings", AWS_SETTINGS)
def test_fedaws(executor: str, settings: dict[str, float]) -> None:
    """Weight decay acts on V, and on the rows that a client holds."""
    margin, nu, rate = settings.get("margin", 0.9), settings.get("nu", 0.9), settings.get("spread", 0.1)
    server_lr, decay = settings.get("server_lr", 1.0), 0.02
    hidden, head = V0.copy(), H0.copy()
    for round in range(ROUNDS):
        ends = []
        for client in range(3):
            v, h = hidden, head
            for pixels, labels in batches(client, round):
                dv, dh = hinge_gradients(v, h, pixels, labels, margin)
                held = (COUNTS[client] > 0)[:, None]
                v, h = v - LR * (dv + decay * v), h - LR * held * (dh + decay * h)
            ends.append((v, h))
        hidden = hidden + server_lr * (mean(SHARE, [v for v, _ in ends]) - hidden)
        rows = head.copy()
        for c in range(3):
            holders = [k for k in range(3) if COUNTS[k, c]]
            samples = sum(SIZES[k] for k in holders)
            rows[c] += server_lr * sum(SIZES[k] / samples * (ends[k][1][c] - head[c]) for k in holders)
        head = spread_out(rows, nu, rate)
    trainer = trained({"name": "fedaws", **settings}, executor, network=TwoLayers(), weight_decay=decay)
    assert_close(trainer.x["hidden.weight"], hidden)
    assert_close(trainer.x["head.weight"], head)


def test_fedaws_moves_rows_of_held_classes_only() -> None:
    """Before the server spreads the rows out: client 0 of the skewed problem lacks class 2."""
    images, alone = toy_skewed_images(), toy_clients((20,))
    trainer = toy_trainer(parsed("fedaws", spread=0.0), images=images, clients=alone)
    before = torch.nn.functional.normalize(trainer.x["head.weight"])
    trainer.step()
    turned = (trainer.x["head.weight"] - before).abs().sum(1)
    assert turned[2] < 1e-15
    assert turned[:2].min() > 1e-3


def test_fedaws_separates_rows_that_collapse() -> None:
    """Every step lowers the largest cosine of rows that are close, and leaves rows that are far apart as they are."""
    generator = torch.Generator().manual_seed(0)
    near = 1 + 0.1 * torch.randn(5, 8, generator=generator, dtype=torch.float64)
    seen = ServerContext(participation=1.0, round=0, head="head.weight")
    zero, held = {"head.weight": 0 * near}, {"held": torch.ones(5, dtype=torch.float64)}

    def largest_cosine(rows: torch.Tensor) -> float:
        return float((rows @ rows.T).fill_diagonal_(-1).max())

    x = {"head.weight": torch.nn.functional.normalize(near)}
    cosines = [largest_cosine(x["head.weight"])]
    for _ in range(60):
        x, _ = parsed("fedaws").server_step(x, zero, held, {}, seen)
        cosines.append(largest_cosine(x["head.weight"]))
    assert cosines[0] > 0.95
    assert cosines[-1] < 0.15  # nu = 0.9 leaves cosines up to 0.1 alone
    assert float((x["head.weight"].norm(dim=1) - 1).abs().max()) < 1e-14
    apart = {"head.weight": torch.eye(5, 8, dtype=torch.float64)}
    assert largest_difference(parsed("fedaws").server_step(apart, zero, held, {}, seen)[0], apart) < 1e-15


def test_fedaws_has_no_bias() -> None:
    x = {"head.weight": torch.eye(3), "head.bias": torch.ones(3)}
    seen = ServerContext(participation=1.0, round=0, head="head.weight")
    after, _ = parsed("fedaws").server_step(x, tmap(torch.zeros_like, x), {"held": torch.ones(3)}, {}, seen)
    assert torch.equal(after["head.bias"], torch.zeros(3))


def test_a_class_without_a_holder_keeps_its_row() -> None:
    x = {"head.weight": torch.eye(3)}
    seen = ServerContext(participation=0.5, round=0, head="head.weight")
    after, _ = parsed("fedaws").server_step(
        x, {"head.weight": 0 * x["head.weight"]}, {"held": torch.zeros(3)}, {}, seen
    )
    assert torch.equal(after["head.weight"], x["head.weight"])


@pytest.mark.parametrize("margin", [0.9, 0.4])
def test_fedaws_gradient_by_hand(margin: float) -> None:
    """Of samples beyond the margin and within, a class without samples, features 0, and ones below the least length."""
    generator = torch.Generator().manual_seed(0)
    rows, f = (torch.randn(4, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    f[1], f[2] = 0.0, 3 * rows[0] + 0.1
    method, z, labels = parsed("fedaws", margin=margin), torch.zeros(4, 4, dtype=torch.float64), [2, 1, 0, 0]
    short = torch.tensor([1e-9, 0, 1, 1])[:, None]
    for own, of in ((f, rows), (f * short, rows), (f, rows * short)):
        assert_penalty_gradient(method, {"head.weight": of}, batch_of(own, z, labels), context_of({}), rtol=1e-9)


MUTATIONS = mutations_of(
    "fedaws",
    ("hinge not squared", "((self.margin - cos_B).clamp_min(0) ** 2)", "(self.margin - cos_B).clamp_min(0)"),
    ("no hinge", "(self.margin - cos_B).clamp_min(0)", "(self.margin - cos_B)"),
    ("margin ignored", "(self.margin - cos_B)", "(0.9 - cos_B)"),
    ("by hand: hinge not squared", ".squeeze(0).square_().mean(0)", ".squeeze(0).mean(0)"),
    ("by hand: sum of the loss", ".square_().mean(0)", ".square_().sum(0)"),
    ("by hand: no hinge", ".movedim(0, -1)).clamp_min_(0)", ".movedim(0, -1))"),
    ("by hand: margin ignored", "(self.margin - cos_N1B", "(0.9 - cos_N1B"),
    ("by hand: sum over the batch", "(-2 / f_NBD.shape[1])", "-2"),
    ("by hand: half", "(-2 / f", "(-1 / f"),
    ("by hand: inner product", "f_NBD * scale_NB1, rows", "f_NBD, rows"),
    ("by hand: rows not unit", "rows_NYD * scale_NY1\n", "rows_NYD * 1\n"),
    ("by hand: length has no gradient", ".addcmul_(unit_NBD, along_NB1, value=-1)", ""),
    ("by hand: rows' length has no gradient", ".addcmul_(unit_NYD, along_NY1, value=-1)", ""),
    ("by hand: short features", "length_NB1.mul_(scale_NB1).clamp_min_(TINY)", "1"),
    ("by hand: short rows", "length_NY1.mul_(scale_NY1).clamp_min_(TINY)", "1"),
    ("by hand: features 0", "length_NB1.mul_(scale_NB1).clamp_min_(TINY)", "length_NB1.mul_(scale_NB1)"),
    ("by hand: rows 0", "length_NY1.mul_(scale_NY1).clamp_min_(TINY)", "length_NY1.mul_(scale_NY1)"),
    ("by hand: unit vectors' gradient", "along_NB1, value=-1).mul_(scale_NB1)", "along_NB1, value=-1)"),
    ("by hand: unit rows' gradient", "along_NY1, value=-1).mul_(scale_NY1)", "along_NY1, value=-1)"),
    ("pushed from its row", "(self.margin - cos_B)", "(self.margin + cos_B)"),
    ("sum over the batch", " ** 2).mean()", " ** 2).sum()"),
    (
        "inner product",
        "cosine_similarity(batch.features_BD, w[ctx.head][batch.labels_B], dim=-1, eps=EPS)",
        "(batch.features_BD * w[ctx.head][batch.labels_B]).sum(-1)",
    ),
    ("the server's rows", "w[ctx.head][batch.labels_B]", "ctx.x[ctx.head][batch.labels_B]"),
    ("other rows decay", "g[ctx.head] * (ctx.counts_Y > 0)[:, None]", "g[ctx.head]"),
    ("rows of rare classes stay", "(ctx.counts_Y > 0)[:, None]", "(ctx.counts_Y > 1)[:, None]"),
    ("all classes are held", "(ctx.counts_Y > 0).to(", "(ctx.counts_Y >= 0).to("),
    ("holders weighed equally", "        return cohort.share\n", "        return super().message_weights(cohort)\n"),
    ("rows averaged over all clients", ' / message["held"].clamp_min(1e-12)[:, None]', ""),
    ("spread in rows that are not unit", "x[ctx.head] / x[ctx.head].norm(dim=1, keepdim=True)", "x[ctx.head]"),
    ("rows not unit afterwards", "moved_YD / moved_YD.norm(dim=1, keepdim=True)", "moved_YD"),
    ("rows attract", "unit_YD - 4", "unit_YD + 4"),
    ("each pair once", "- 4 * self", "- 2 * self"),
    ("spread ignored", "4 * self.spread", "0.4"),
    ("nu ignored", "(self.nu - 1 +", "(0.9 - 1 +"),
    ("nu's sign", "(self.nu - 1 +", "(1 - self.nu +"),
    ("far rows attract", ".clamp_min(0).fill_diagonal_(0)", ".fill_diagonal_(0)"),
    ("margin by default", "Field(gt=0, le=1)] = 0.9", "Field(gt=0, le=1)] = 0.5"),
    ("nu by default", "Field(gt=0, le=2)] = 0.9", "Field(gt=0, le=2)] = 1.2"),
    ("spread by default", "Field(ge=0)] = 0.1", "Field(ge=0)] = 0.2"),
    ("bias stays", "{name: 0 * x[name] for", "{name: x[name] for"),
    ("a class without holders", ".clamp_min(1e-12)", ""),
)
