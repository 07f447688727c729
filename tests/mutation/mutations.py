"""Mutations of the methods: mistakes made by replacing ``old`` by ``new`` in the code."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """One plausible mistake.

    Attributes:
        file: the module in ``flbench.methods``, or the module in ``flbench`` with its folder.
        what: the mistake in words.
        old: source text. It occurs once in the file, or ``nth`` selects one occurrence.
        new: its replacement.
        nth: the occurrence, counted from 0.
        equivalent: why the mutation changes no number, so that no test can kill it.
    """

    file: str
    what: str
    old: str
    new: str
    nth: int | None = None
    equivalent: str = ""

    def apply(self, source: str) -> str:
        """Return the mutated source."""
        parts = source.split(self.old)
        expected = 1 if self.nth is None else max(self.nth + 1, 2)
        if len(parts) - 1 < expected or (self.nth is None and len(parts) != 2):
            raise ValueError(f"{self.file}: {self.old!r} occurs {len(parts) - 1} times")
        cut = (self.nth or 0) + 1
        return self.old.join(parts[:cut]) + self.new + self.old.join(parts[cut:])


def mutations_of(file: str, *mutations: tuple[str, str, str] | tuple[str, str, str, int]) -> tuple[Mutation, ...]:
    """Return the mutations of one module."""
    return tuple(Mutation(file, *mutation) for mutation in mutations)


_BASE = mutations_of(
    "base",
    ("server learning rate dropped", "a + self.server_lr * d", "a + d"),
    ("server steps backwards", "a + self.server_lr * d", "a - self.server_lr * d"),
    ("server learning rate off by default", "server_lr: Annotated[float, Field(gt=0)] = 1.0", "server_lr: float = 0.9"),
    ("clients weighed equally", "        return share\n", "        return [1 / len(share)] * len(share)\n"),
    ("clients are summed", "        return share\n", "        return [1.0] * len(share)\n"),
    ("messages are summed", "return [1 / len(share)] * len(share)", "return [1.0] * len(share)"),
    ("messages weighed by samples", "return [1 / len(share)] * len(share)", "return share"),
    ("logits negated", "return z_BY\n", "return -z_BY\n"),
    ("a penalty by default", "        return 0.0\n", "        return sum((leaf**2).sum() for leaf in w.values())\n"),
    ("direction negated", "        return g\n", "        return {name: -leaf for name, leaf in g.items()}\n"),
)

_FEDPROX = mutations_of(
    "fedprox",
    ("not halved", "self.mu / 2 * squared", "self.mu * squared"),
    ("sign flipped", "self.mu / 2 * squared", "-self.mu / 2 * squared"),
    ("norm not squared", "((w[name] - x) ** 2).sum()", "(((w[name] - x) ** 2).sum() + 1e-12).sqrt()"),
    ("mean for sum", "((w[name] - x) ** 2).sum()", "((w[name] - x) ** 2).mean()"),
    ("pulls to -x", "(w[name] - x)", "(w[name] + x)"),
    ("pulls to 0", "(w[name] - x)", "w[name]"),
    ("no gradient, as the published value", "(w[name] - x)", "(w[name].detach() - x)"),
    ("mu as the published default", "Field(ge=0)] = 0.01", "Field(ge=0)] = 1.0"),
    ("mu ignored", "self.mu / 2 * squared", "squared / 2"),
)

_FEDLC = mutations_of(
    "fedlc",
    ("sign of the margin", "z_BY - margin_Y", "z_BY + margin_Y"),
    ("square root for fourth", "** -0.25", "** -0.5"),
    ("power not inverse", "** -0.25", "** 0.25"),
    ("tau ignored", "self.tau * ctx", "ctx"),
    ("tau by default", "= 1.0", "= 0.5"),
    ("missing classes stay at tau = 0", '.masked_fill(ctx.counts_Y == 0, float("-inf"))', ".nan_to_num(nan=0.0)"),
    ("missing classes get 0", 'float("-inf")', "0.0"),
    ("held classes leave", "ctx.counts_Y == 0", "ctx.counts_Y > 0"),
    ("rare classes leave too", "ctx.counts_Y == 0", "ctx.counts_Y < 2"),
    ("shares for counts", "ctx.counts_Y.to(z_BY.dtype)", "(ctx.counts_Y.to(z_BY.dtype) / ctx.counts_Y.sum())"),
)

_FEDRS = mutations_of(
    "fedrs",
    ("held and missing swapped", "held_Y + self.alpha * (1 - held_Y)", "(1 - held_Y) + self.alpha * held_Y"),
    ("missing logits at 0", "held_Y + self.alpha * (1 - held_Y)", "held_Y"),
    ("sign of alpha", "held_Y + self.alpha", "held_Y - self.alpha"),
    ("added for multiplied", "z_BY * (", "z_BY + ("),
    ("one sample is none", "(ctx.counts_Y > 0)", "(ctx.counts_Y > 1)"),
    ("off, as the published default", "= 0.5", "= 1.0"),
    ("alpha squared", "self.alpha * (1 - held_Y)", "self.alpha**2 * (1 - held_Y)"),
)

_FEDDECORR = (
    *mutations_of(
        "feddecorr",
        ("not centred", "batch.features_BD - batch.features_BD.mean(0)", "batch.features_BD"),
        ("centred by sample", "batch.features_BD.mean(0)", "batch.features_BD.mean(1, keepdim=True)"),
        ("original: deviation of the sum", "(centred**2).mean(0) + EPS", "(centred**2).sum(0) + EPS"),
        ("original: variance for deviation", "((centred**2).mean(0) + EPS).sqrt()", "((centred**2).mean(0) + EPS)"),
        ("original: deviation has no gradient", "(centred**2).mean(0)", "(centred.detach() ** 2).mean(0)"),
        ("original: not divided by n", "(u.T @ u / n) ** 2", "(u.T @ u) ** 2"),
        ("original: norm not squared", "((u.T @ u / n) ** 2).sum()", "((u.T @ u / n) ** 2).sum().sqrt()"),
        ("original: correlations not squared", "(u.T @ u / n) ** 2", "(u.T @ u / n)"),
        ("original: d for d^2", "/ d**2", "/ d"),
        ("original: sign flipped", "return self.coefficient / d**2", "return -self.coefficient / d**2"),
        ("code: biased deviation", "(n - 1) + EPS", "n + EPS"),
        ("code: with the diagonal", "(squares.sum() - squares.diagonal().sum())", "squares.sum()"),
        ("code: mean over all entries", "max(1, d * (d - 1))", "d**2"),
        ("code: not divided by n", "coefficient / n *", "coefficient *"),
        ("code: divided by n twice", "squares = (u.T @ u) ** 2", "squares = (u.T @ u / n) ** 2"),
        ("code: between samples", "squares = (u.T @ u) ** 2", "squares = (u @ u.T) ** 2"),
        ("code: not squared", "squares = (u.T @ u) ** 2", "squares = (u.T @ u).abs()"),
        ("code: sign flipped", "return coefficient / n", "return -coefficient / n"),
        ("eps of normalizations", "EPS = 1e-8", "EPS = 1e-5"),
        ("forms swapped", 'if self.variant == "original"', 'if self.variant != "original"'),
        ("text has the code's coefficient", 'self.variant == "code" else', 'self.variant == "text" else'),
        (
            "the code has the text's coefficient",
            'coefficient = 0.1 if self.variant == "code" else self',
            "coefficient = self",
        ),
        (
            "the code's coefficient for both",
            'coefficient = 0.1 if self.variant == "code" else self.coefficient',
            "coefficient = 0.1",
        ),
        ("coefficient ignored", "else self.coefficient", "else 0.5"),
        ("original: coefficient ignored", "return self.coefficient / d**2", "return 0.5 / d**2"),
        ("coefficient by default", "Field(ge=0)] = 0.5", "Field(ge=0)] = 0.1"),
    ),
    Mutation(
        "feddecorr",
        "original: between samples",
        "(u.T @ u / n) ** 2",
        "(u @ u.T / n) ** 2",
        equivalent="u^T u and u u^T have the same eigenvalues but zeros, so the same Frobenius norm",
    ),
)

_A = "(k - momentum * (1 - momentum**k) / (1 - momentum)) / (1 - momentum)"
_FEDNOVA = mutations_of(
    "fednova",
    ("momentum ignored", _A, "k"),
    ("momentum not summed over steps", _A, "k / (1 - momentum)"),
    ("one step too few", "momentum**k", "momentum ** (k - 1)"),
    ("sign in the sum", "(k - momentum", "(k + momentum"),
    ("not scaled back", "p * effective / a_k", "p / a_k"),
    ("not normalised", "p * effective / a_k", "p * effective"),
    ("FedAvg", "p * effective / a_k", "p"),
    ("clients count equally", "p * effective / a_k", "effective / a_k / len(a)"),
    ("upside down", "p * effective / a_k", "p * a_k / effective"),
    ("effective steps not weighed", "sum_in_order(p * a_k for", "sum_in_order(a_k / len(a) for"),
    ("most steps for effective ones", "p * effective / a_k", "p * max(a) / a_k"),
)

_AVGM = "tmap(lambda a, v: a + self.server_lr * v, x, v), v"
_M = 'self.beta1 * state[f"m/{name}"] + (1 - self.beta1) * d'
_YOGI = "v - (1 - self.beta2) * squared * (v - squared).sign()"
_FEDOPT = mutations_of(
    "fedopt",
    ("avgm: no momentum", "self.beta * v + d", "d"),
    ("avgm: sign of delta", "self.beta * v + d", "self.beta * v - d"),
    ("avgm: moving mean", "self.beta * v + d", "self.beta * v + (1 - self.beta) * d"),
    ("avgm: beta on delta", "self.beta * v + d", "v + self.beta * d"),
    ("avgm: beta by default", "Field(ge=0, lt=1)] = 0.9", "Field(ge=0, lt=1)] = 0.5", 0),
    ("avgm: velocity not kept", _AVGM, _AVGM[:-1] + "state"),
    ("avgm: steps along delta", _AVGM, "tmap(lambda a, v: a + self.server_lr * v, x, delta), v"),
    ("avgm: learning rate dropped", _AVGM, "tmap(lambda a, v: a + v, x, v), v"),
    ("avgm: backwards", _AVGM, "tmap(lambda a, v: a - self.server_lr * v, x, v), v"),
    ("m is a sum", _M, 'self.beta1 * state[f"m/{name}"] + d'),
    ("m without memory", _M, "(1 - self.beta1) * d"),
    ("m's weights swapped", _M, '(1 - self.beta1) * state[f"m/{name}"] + self.beta1 * d'),
    ("delta not squared", "d * d)", "d.abs())"),
    ("v for its root", "v.sqrt() + self.tau", "v + self.tau"),
    ("tau under the root", "(v.sqrt() + self.tau)", "(v + self.tau).sqrt()"),
    ("tau dropped", "(v.sqrt() + self.tau)", "v.sqrt()"),
    ("learning rate dropped", "self.server_lr * m /", "m /"),
    ("backwards", "a + self.server_lr * m", "a - self.server_lr * m"),
    ("m not kept", '{f"m/{name}": a for name, a in m.items()}', '{f"m/{name}": state[f"m/{name}"] for name in m}'),
    ("v not kept", '{f"v/{name}": a for name, a in v.items()}', '{f"v/{name}": state[f"v/{name}"] for name in v}'),
    ("v0 ignored", "0 * a + self.v0", "0 * a"),
    ("m starts at x", '{f"m/{name}": 0 * a for', '{f"m/{name}": a for'),
    ("server_lr by default", "server_lr: Annotated[float, Field(gt=0)] = 0.01", "server_lr: float = 0.1"),
    ("beta1 by default", "beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9", "beta1: float = 0.99"),
    ("tau by default", "= 1e-3", "= 1e-2"),
    ("v0 by default", '"v0", self.tau * self.tau', '"v0", self.tau'),
    ("adagrad: with momentum", "beta1: Annotated[float, Field(ge=0, lt=1)] = 0.0", "beta1: float = 0.9"),
    ("adagrad: without memory", "return v + squared", "return squared"),
    ("adagrad: a mean", "return v + squared", "return (v + squared) / 2"),
    ("adam: a sum", "self.beta2 * v + (1 - self.beta2) * squared", "self.beta2 * v + squared"),
    ("adam: beta1 for beta2", "self.beta2 * v + (1 - self.beta2)", "self.beta1 * v + (1 - self.beta1)"),
    ("adam: weights swapped", "self.beta2 * v + (1 - self.beta2)", "(1 - self.beta2) * v + self.beta2"),
    ("adam: beta2 by default", "Field(ge=0, lt=1)] = 0.99", "Field(ge=0, lt=1)] = 0.999", 0),
    ("yogi: sign before v", _YOGI, _YOGI.replace("v - (1", "v + (1")),
    ("yogi: sign of the distance", _YOGI, _YOGI.replace("(v - squared)", "(squared - v)")),
    ("yogi: distance for its sign", _YOGI, _YOGI.replace(".sign()", "")),
    ("yogi: not scaled by delta^2", _YOGI, _YOGI.replace("* squared *", "*")),
    ("yogi: Adam", _YOGI, "self.beta2 * v + (1 - self.beta2) * squared"),
    ("yogi: always down", _YOGI, "v - (1 - self.beta2) * squared"),
    ("yogi: beta2 for 1 - beta2", _YOGI, _YOGI.replace("(1 - self.beta2)", "self.beta2")),
    ("yogi: beta2 by default", "Field(ge=0, lt=1)] = 0.99", "Field(ge=0, lt=1)] = 0.999", 1),
)

_CONTROL = "ci - c + (x - w) / ctx.steps / ctx.lr"
_SCAFFOLD = mutations_of(
    "scaffold",
    ("correction's sign", "g - ci + c\n", "g + ci - c\n"),
    ("without the server's control", "g - ci + c\n", "g - ci\n"),
    ("without the client's control", "g - ci + c\n", "g + c\n"),
    ("no correction", "g - ci + c\n", "g\n"),
    ("always before momentum", "return g if self.variant in AFTER_MOMENTUM else tmap", "return tmap"),
    ("never after momentum", "ctx.server) if self.variant in AFTER_MOMENTUM else moved", "ctx.server) if 0 else moved"),
    ("NIID-Bench before momentum", '("niid-bench", "flower")\n', '("flower",)\n'),
    ("Flower before momentum", '("niid-bench", "flower")\n', '("niid-bench",)\n'),
    ("control: sign of c", _CONTROL, _CONTROL.replace("- c", "+ c")),
    ("control: without c", _CONTROL, _CONTROL.replace("- c ", "")),
    ("control: without c_i", _CONTROL, _CONTROL.replace("ci - c", "-c")),
    ("control: the other way", _CONTROL, _CONTROL.replace("(x - w)", "(w - x)")),
    ("control: not divided by lr", _CONTROL, _CONTROL.replace(" / ctx.lr", "")),
    ("control: not divided by steps", _CONTROL, _CONTROL.replace(" / ctx.steps", "")),
    ("control: multiplied by lr", _CONTROL, _CONTROL.replace("/ ctx.lr", "* ctx.lr")),
    ("c_i never moves, as published", "return new, tmap(", "return ctx.client, tmap("),
    (
        "controls stay 0, as published",
        "return new, tmap(lambda",
        "return ctx.client, tmap(lambda after, before: 0 * after, new, new)\n        return new, tmap(lambda",
    ),
    ("message's sign", "after - before", "before - after"),
    ("message is the control", "after - before", "after"),
    ("c moves by the whole mean", "c + ctx.participation * change", "c + change"),
    ("c moves backwards", "c + ctx.participation * change", "c - ctx.participation * change"),
    ("c forgets", "c + ctx.participation * change", "ctx.participation * change"),
    ("c never moves", "c + ctx.participation * change", "c"),
    ("server's step dropped", "x, _ = super().server_step", "_, _ = super().server_step"),
    ("original by samples", 'if self.variant == "original" else share', 'if self.variant == "" else share'),
    ("clients are summed", "return [1 / len(share)] * len(share) if", "return [1.0] * len(share) if"),
    ("text for original", 'if self.variant == "original"', 'if self.variant == "text"'),
    ("code's messages in text", 'if self.variant in ("code",', 'if self.variant in ("text",'),
    ("Flower's messages equal", 'in ("code", "flower")', 'in ("code",)'),
    ("NIID-Bench's messages by samples", 'in ("code", "flower")', 'in ("code", "flower", "niid-bench")'),
    ("code's messages equal", 'return share if self.variant in ("code", "flower") else super()', "return super()"),
    ("text by default", '"flower"] = "original"', '"flower"] = "text"'),
    ("c starts at x", "        return tmap(lambda a: 0 * a, x)", "        return tmap(lambda a: a, x)", 0),
    ("c_i starts at x", "        return tmap(lambda a: 0 * a, x)", "        return tmap(lambda a: a, x)", 1),
)

_OF_TORCH = 'isinstance(module, __import__("torch").nn.modules.batchnorm._BatchNorm)'
_BOTH = "[*dict(module.named_parameters()), *dict(module.named_buffers())]"
_FEDBN = mutations_of(
    "fedbn",
    ("statistics are averaged", _BOTH, "dict(module.named_parameters())"),
    ("affine maps are averaged", _BOTH, "dict(module.named_buffers())"),
    ("torch's layers are forgotten", "is_batch_norm(module)", f"is_batch_norm(module) and not {_OF_TORCH}"),
    ("flbench's layers are forgotten", "is_batch_norm(module)", _OF_TORCH),
    ("found by name", "is_batch_norm(module)", '"bn" in path'),
)

_LOCAL_ONLY = mutations_of(
    "local_only",
    ("statistics are averaged", ", *dict(model.named_buffers())", ""),
    ("weights are averaged", "*dict(model.named_parameters()), ", ""),
)

_REGULARIZER = "(w - x).add_(c).mul_(alpha).add_(g)"
_FEDDYN = mutations_of(
    "feddyn",
    ("alpha not scaled by samples", '(1 / ctx.relative_size if self.weighting == "samples" else 1)', "1"),
    ("alpha times the samples", "1 / ctx.relative_size", "ctx.relative_size"),
    ("weightings swapped", 'if self.weighting == "samples"', 'if self.weighting != "samples"'),
    ("equal by default", '= "samples"\n', '= "equal"\n'),
    ("alpha by default", "Field(gt=0)] = 0.01", "Field(gt=0)] = 0.1"),
    ("no proximal part", _REGULARIZER, "g + alpha * c"),
    ("no linear part", _REGULARIZER, "g + alpha * (w - x)"),
    ("linear part's sign", _REGULARIZER, "g + alpha * (w - x - c)"),
    ("proximal part's sign", _REGULARIZER, "g + alpha * (x - w + c)"),
    ("no gradient", _REGULARIZER, "alpha * (w - x + c)"),
    ("c_k's sign", "c + (w - x), ctx", "c - (w - x), ctx"),
    ("c_k forgets", "c + (w - x), ctx", "w - x, ctx"),
    ("c_k never moves", "c + (w - x), ctx", "c, ctx"),
    ("changes weighed by samples", "[1 / len(share)] * len(share)", "share"),
    ("changes are summed", "[1 / len(share)] * len(share)", "[1.0] * len(share)"),
    ("h by the mean of the cohort", "h + ctx.participation * d", "h + d"),
    ("h backwards", "h + ctx.participation * d", "h - ctx.participation * d"),
    ("h forgets", "h + ctx.participation * d", "ctx.participation * d"),
    ("h before the round", "x, delta, h), h", "x, delta, state), h"),
    ("h not added", "self.server_lr * (d + h)", "self.server_lr * d"),
    ("h subtracted", "self.server_lr * (d + h)", "self.server_lr * (d - h)"),
    ("server learning rate dropped", "self.server_lr * (d + h)", "(d + h)"),
    ("server learning rate for the changes only", "self.server_lr * (d + h)", "self.server_lr * d + h"),
)

_MIXED = "self.alpha * g + (d - self.alpha * d)"
_FEDCM = mutations_of(
    "fedcm",
    ("weights swapped", _MIXED, "(1 - self.alpha) * g + self.alpha * d"),
    ("sign of D", _MIXED, "self.alpha * g - (1 - self.alpha) * d"),
    ("gradient in full", _MIXED, "g + (1 - self.alpha) * d"),
    ("D in full", _MIXED, "self.alpha * g + d"),
    ("no D", _MIXED, "self.alpha * g"),
    ("step's sign", "(x - w) / ctx.steps", "(w - x) / ctx.steps"),
    ("not divided by steps", " / ctx.steps", ""),
    ("not divided by lr", " / ctx.lr", ""),
    ("multiplied by lr", "/ ctx.lr", "* ctx.lr"),
    ("D weighs clients equally", "        return share\n", "        return super().message_weights(share)\n"),
    ("D is a running sum", "[0], message", "[0], tmap(lambda a, b: a + b, state, message)"),
    ("D never moves", "[0], message", "[0], state"),
    (
        "server's step dropped",
        "return super().server_step(x, delta, message, state, ctx)[0], message",
        "return x, message",
    ),
    ("alpha by default", "= 0.1", "= 0.9"),
    ("D starts at x", "lambda a: 0 * a", "lambda a: a"),
    ("clients start at D", "        return x, state\n", "        return state, state\n"),
)

_ASCENT = "w + scale * g"
_FEDSAM = mutations_of(
    "fedsam",
    ("descent", _ASCENT, "w - scale * g"),
    ("not normalized", _ASCENT, "w + self.rho * g"),
    ("squared norm", "ctx.norm(g)", "(ctx.norm(g) ** 2)"),
    ("norm of the weights", "ctx.norm(g)", "ctx.norm(w)"),
    ("one norm for each leaf", _ASCENT, 'w + self.rho / ctx.norm({"": g}) * g'),
    ("rho ignored", "self.rho * (1", "0.05 * (1"),
    ("rho by default", "Field(ge=0)] = 0.05", "Field(ge=0)] = 0.5"),
    ("perturbed from the start", "scale * g, w, g)", "scale * g, ctx.x, g)"),
    ("no bound of the norm", ".clamp_min(TINY)", ""),
    ("a large bound of the norm", "TINY = 1e-12", "TINY = 1e-3"),
    ("MoFedSAM without FedSAM", "class MoFedSAM(FedSAM, FedCM)", "class MoFedSAM(FedCM)"),
    ("MoFedSAM without FedCM", "class MoFedSAM(FedSAM, FedCM)", "class MoFedSAM(FedSAM)"),
)

_FEDEXP = mutations_of(
    "fedexp",
    ("not halved", "(2 * (of_mean + self.eps))", "(of_mean + self.eps)"),
    ("doubled for halved", "(2 * (of_mean + self.eps))", "(of_mean + self.eps) * 2"),
    ("eps outside", "(2 * (of_mean + self.eps))", "(2 * of_mean + self.eps)"),
    ("eps ignored", "of_mean + self.eps", "of_mean + 1e-3"),
    ("eps by default", "Field(gt=0)] = 1e-3", "Field(gt=0)] = 1e-4"),
    ("below 1", ".clamp_min(1)", ""),
    ("never above 1", ".clamp_min(1)", ".clamp(1, 1)"),
    ("lengths not squared", "((w[name] - x) ** 2).sum()", "(w[name] - x).abs().sum()"),
    ("lengths of the weights", "((w[name] - x) ** 2).sum()", "(w[name] ** 2).sum()"),
    ("length of the mean not squared", "(d**2).sum()", "d.abs().sum()"),
    ("lengths weighed equally", "        return share\n", "        return super().message_weights(share)\n"),
    ("lengths are summed", "        return share\n", "        return [1.0] * len(share)\n"),
    ("steps backwards", "a + step * d", "a - step * d"),
    ("no extrapolation", "a + step * d", "a + d"),
    ("previous is the next", "delta), self.init_server(x)", "delta), tmap(lambda a, d: a + step * d, x, delta)"),
    ("the first for ever", "delta), self.init_server(x)", "delta), state"),
    ("the last is evaluated", "(a + before) / 2", "a"),
    ("the one before is evaluated", "(a + before) / 2", "before"),
    ("sum is evaluated", "(a + before) / 2", "a + before"),
)

_FEDACG = mutations_of(
    "fedacg",
    ("starts behind", "a + self.server_lr * self.lam * m", "a - self.server_lr * self.lam * m"),
    ("starts at x", "a + self.server_lr * self.lam * m", "a"),
    ("starts too far ahead", "a + self.server_lr * self.lam * m", "a + self.server_lr * m"),
    ("starts without the server's rate", "a + self.server_lr * self.lam * m", "a + self.lam * m"),
    ("pulls twice, as the code", "self.beta / 2 * squared", "self.beta * squared"),
    ("pushes", "self.beta / 2 * squared", "-self.beta / 2 * squared"),
    ("pulls to 0", "((w[name] - x) ** 2)", "(w[name] ** 2)"),
    ("no momentum", "self.lam * m + d", "d"),
    ("momentum's weights add to 1", "self.lam * m + d", "self.lam * m + (1 - self.lam) * d"),
    (
        "x moves from the lookahead twice",
        "a + self.server_lr * m, x, m), m",
        "a + self.server_lr * (1 + self.lam) * m, x, m), m",
    ),
    ("server's rate dropped", "a + self.server_lr * m, x, m), m", "a + m, x, m), m"),
    ("momentum never moves", "x, m), m\n", "x, m), state\n"),
    ("lam by default", "= 0.85", "= 0.9"),
    ("beta by default", "Field(ge=0)] = 0.001", "Field(ge=0)] = 0.01"),
    ("m starts at x", "lambda a: 0 * a", "lambda a: a"),
)

_UNIT = "normalize(each.features_BD, dim=-1, eps=1e-8)"
_MOON = mutations_of(
    "moon",
    ("pulled to the previous", "(previous_BD - server_BD)", "(server_BD - previous_BD)"),
    ("tau multiplied", "/ self.tau", "* self.tau"),
    ("tau ignored", "difference_B / self.tau", "difference_B"),
    ("mu ignored", "self.mu * softplus", "softplus"),
    ("sum for mean", ".mean()", ".sum()"),
    ("mu by default", "= 1.0", "= 5.0"),
    ("tau by default", "Field(gt=0)] = 0.5", "Field(gt=0)] = 1.0"),
    ("logits for features", "each.features_BD", "each.logits_BY"),
    ("normalized over the batch", "dim=-1", "dim=0"),
    ("product over the batch", ".sum(-1)", ".sum(0)"),
    ("inner product", _UNIT, "each.features_BD"),
    ("no push", "previous_BD - server_BD)", "-server_BD)"),
    ("no pull", "previous_BD - server_BD)", "previous_BD)"),
    ("previous never moves", "return {**w, **ctx.buffers}, {}", "return ctx.client, {}"),
    ("previous is the start of the round", "return {**w, **ctx.buffers}, {}", "return {**ctx.x, **ctx.buffers}, {}"),
    ("previous has its first statistics", "return {**w, **ctx.buffers}, {}", "return {**ctx.client, **w}, {}"),
    ("previous has the server's statistics", '"previous": ctx.client', '"previous": {n: ctx.client[n] for n in ctx.x}'),
    ("both are the previous", '"server": ctx.x', '"server": ctx.client'),
)

_FEDNTD = mutations_of(
    "fedntd",
    ("true class stays", '.masked_fill(true_BY, float("-inf"))', ""),
    ("true class gets 0", 'float("-inf")', "0.0"),
    ("only the true class", "batch.labels_B[:, None] ==", "batch.labels_B[:, None] !="),
    ("reverse divergence", "q_BY.exp() *", "-p_BY.exp() *"),
    ("cross-entropy's gradient of q", "q_BY.masked_fill(true_BY, 0) - p_BY", "p_BY.masked_fill(true_BY, 0) - p_BY"),
    ("sign", "return self.beta *", "return -self.beta *"),
    ("beta ignored", "return self.beta *", "return"),
    ("tau multiplied", "(z_BY / self.tau)", "(z_BY * self.tau)"),
    ("times tau^2, as the code", "return self.beta *", "return self.beta * self.tau**2 *"),
    ("mean over classes", ".sum(1).mean()", ".mean()"),
    ("sum over samples", ".sum(1).mean()", ".sum()"),
    ("over the batch", ".log_softmax(1)", ".log_softmax(0)"),
    ("beta by default", "beta: Annotated[float, Field(ge=0)] = 1.0", "beta: Annotated[float, Field(ge=0)] = 0.5"),
    ("tau by default", "tau: Annotated[float, Field(gt=0)] = 1.0", "tau: Annotated[float, Field(gt=0)] = 3.0"),
)

_FEDAWS = mutations_of(
    "fedaws",
    ("hinge not squared", "((self.margin - cos_B).clamp_min(0) ** 2)", "(self.margin - cos_B).clamp_min(0)"),
    ("no hinge", "(self.margin - cos_B).clamp_min(0)", "(self.margin - cos_B)"),
    ("margin ignored", "(self.margin - cos_B)", "(0.9 - cos_B)"),
    ("pushed from its row", "(self.margin - cos_B)", "(self.margin + cos_B)"),
    ("sum over the batch", " ** 2).mean()", " ** 2).sum()"),
    (
        "inner product",
        "cosine_similarity(batch.features_BD, w[ctx.head][batch.labels_B], dim=-1)",
        "(batch.features_BD * w[ctx.head][batch.labels_B]).sum(-1)",
    ),
    ("the server's rows", "w[ctx.head][batch.labels_B]", "ctx.x[ctx.head][batch.labels_B]"),
    ("other rows decay", "g[ctx.head] * (ctx.counts_Y > 0)[:, None]", "g[ctx.head]"),
    ("rows of rare classes stay", "(ctx.counts_Y > 0)[:, None]", "(ctx.counts_Y > 1)[:, None]"),
    ("all classes are held", "(ctx.counts_Y > 0).to(", "(ctx.counts_Y >= 0).to("),
    ("holders weighed equally", "        return share\n", "        return super().message_weights(share)\n"),
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

_BALANCED = mutations_of(
    "balanced_softmax",
    ("counts for their logarithms", ".to(z_BY.dtype).log()", ".to(z_BY.dtype)"),
    ("inverse counts", "z_BY + ctx", "z_BY - ctx"),
    ("missing classes stay", ".log()", ".clamp(min=1).log()"),
    ("one sample more of each class", ".log()", ".log1p()"),
    ("counts of held classes ignored", "ctx.counts_Y.to", "(ctx.counts_Y > 0).to"),
    ("logits dropped", "z_BY + ctx", "0 * z_BY + ctx"),
)

MUTATIONS: tuple[Mutation, ...] = (
    *_BASE, *_BALANCED, *_FEDPROX, *_FEDLC, *_FEDRS, *_FEDDECORR, *_FEDNOVA, *_FEDOPT, *_SCAFFOLD, *_FEDBN,
    *_LOCAL_ONLY, *_FEDDYN, *_FEDCM, *_FEDSAM, *_FEDEXP, *_FEDACG, *_MOON, *_FEDNTD, *_FEDAWS,
)  # fmt: skip
