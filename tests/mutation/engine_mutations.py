"""Mutations of the local optimizers, the norms of weights, and the choice of the executor for partial batches."""

from __future__ import annotations

from tests.models import test_heads as heads
from tests.mutation.mutations import Mutation, mutations_of

_OPTIMIZERS = mutations_of(
    "engine.optimizers",
    ("no state", "return self.momentum > 0", "return False"),
    ("momentum dropped", "self.momentum * state[name] + leaf", "state[name] + leaf"),
    ("dampened", "self.momentum * state[name] + leaf", "self.momentum * state[name] + (1 - self.momentum) * leaf"),
    ("gradient dropped", "self.momentum * state[name] + leaf", "self.momentum * state[name]"),
    ("Nesterov is plain momentum", "        if self.nesterov:\n", "        if False:\n"),
    ("Nesterov always", "        if self.nesterov:\n", "        if True:\n"),
    ("Nesterov adds the velocity in full", "leaf + self.momentum * moved[name]", "leaf + moved[name]"),
    ("Nesterov drops the gradient", "leaf + self.momentum * moved[name]", "self.momentum * moved[name]"),
    (
        "Nesterov's step is its velocity",
        "for name, leaf in direction.items()}, moved\n",
        "for name, leaf in direction.items()}, direction\n",
    ),
    ("weight decay dropped", "return self.weight_decay\n", "return 0.0\n"),
    ("constant rate", "self.lr * rate_factor(self.schedule, round)", "self.lr"),
    ("schedule a round late", "rate_factor(self.schedule, round)", "rate_factor(self.schedule, max(0, round - 1))"),
    ("schedule a round early", "rate_factor(self.schedule, round)", "rate_factor(self.schedule, round + 1)"),
    ("the round's rate is the first", "lr=self.lr_in(round), schedule", "lr=self.lr, schedule"),
    (
        "Adam without state",
        "has_state(self) -> bool:\n        return True",
        "has_state(self) -> bool:\n        return False",
    ),
    ("AdamW's decay is coupled", "return 0.0 if self.decoupled else self.weight_decay", "return self.weight_decay"),
    ("Adam without weight decay", "return 0.0 if self.decoupled else self.weight_decay", "return 0.0"),
    ("betas swapped", "beta1, beta2 = BETAS", "beta2, beta1 = BETAS"),
    ("another beta1", "(0.9, 0.999)", "(0.95, 0.999)"),
    ("another beta2", "(0.9, 0.999)", "(0.9, 0.99)"),
    ("another epsilon", "1e-8", "1e-6"),
    ("first moment not weighed", "(1 - beta1) * leaf", "leaf"),
    ("second moment not squared", "leaf.square().mul_", "leaf.abs().mul_"),
    ("first moment forgets", 'first.add_(beta1 * state[f"first/{name}"])', "pass"),
    ("second moment forgets", 'second.add_(beta2 * state[f"second/{name}"])', "pass"),
    ("first moment biased", "(first / of_first)", "(first / 1)"),
    ("second moment biased", "(second / of_second).sqrt_()", "second.sqrt()"),
    ("first bias a step late", "1 - beta1**count", "1 - beta1 ** (count + 1)"),
    ("second bias a step late", "1 - beta2**count", "1 - beta2 ** (count + 1)"),
    ("no root", "(second / of_second).sqrt_()", "(second / of_second)"),
    ("a kept bias starts anew", "            if self.kept:  # by", "            if False:  # by"),
    ("kept moments are weighed as means", '{name}"] + (1 - beta)', '{name}"] * (1 - beta) + (1 - beta)'),
    ("momentum is not kept", "tmap(torch.zeros_like, params) if self.kept else {}", "{}"),
    ("moments are not kept", "        if not self.kept:\n", "        if True:\n"),
    ("epsilon in the root", ".sqrt_().add_(EPS)", ".add_(EPS).sqrt_()"),
    ("AdamW without decay", "out[name] + self.weight_decay * w[name]", "out[name]"),
    ("AdamW grows", "out[name] + self.weight_decay * w[name]", "out[name] - self.weight_decay * w[name]"),
    ("AdamW decays the direction", "self.weight_decay * w[name]", "self.weight_decay * leaf"),
    ("not clipped", ".clamp(max=1)", ".clamp(max=1, min=1)"),
    ("short gradients are stretched", ".clamp(max=1)", ""),
    ("clipped to length 1", "(clip_norm / (norm + 1e-6))", "(1 / (norm + 1e-6))"),
    ("squared norm", ".sum().sqrt()\n", ".sum()\n"),
    ("largest leaf", "for leaf in grads.values()]).sum().sqrt()", "for leaf in grads.values()]).max().sqrt()"),
    ("nothing added to the norm", "(norm + 1e-6)", "norm"),
    ("agc without effect", "is not None or self.agc is not None", "is not None"),
    ("units are not clipped", "torch.where(norm > largest, shorter, leaf)", "leaf"),
    ("all units are scaled", "torch.where(norm > largest, shorter, leaf)", "shorter"),
    ("the head's units are clipped", "leaf if keep else torch", "torch"),
    ("a layer is a unit", "tuple(range(1, leaf.dim())) or None", "None"),
    ("agc ignored", "agc * _unit_norms(w[name])", "0.01 * _unit_norms(w[name])"),
    ("units as long as their gradient", "_unit_norms(w[name])", "_unit_norms(leaf)"),
    ("zero weights do not move", ".clamp_min(SHORTEST_UNIT)", ""),
    ("another shortest unit", "SHORTEST_UNIT = 1e-3", "SHORTEST_UNIT = 1e-2"),
)

_LOCAL = mutations_of(
    "engine.local",
    ("ascent", "alpha=-rates", "alpha=rates"),
    ("ascent with each client's rate", "value=-1", "value=1"),
    ("the first client's rate", "aligned(lr, leaf)", "aligned(lr[:1], leaf)"),
    ("clients go on after their steps", "_where(training, change), ", "change, "),
    ("clients that are done lose their statistics", "old[name] if old else 0", "0"),
)

_PARTIAL = mutations_of(
    "engine.partial_batches",
    ("losses are overlooked", '"loss", ', ""),
    ("changed logits are overlooked", '"logits", "loss"', '"loss"'),
    ("penalties are overlooked", ', "penalty"', ""),
    ("the network is not looked at", "return not moved and not gradient[1:].any()", "return True"),
    ("the own pixels count", "gradient[1:]", "gradient"),
    (
        "only one other sample counts the other way",
        "return not moved and not gradient[1:].any()",
        "return bool(gradient[1:].any())",
    ),
    ("in the mode at hand", "    network.train()\n", ""),
    ("black images", "torch.rand(4, *image, generator=generator, dtype=torch.float64)", "torch.zeros(4, *image)"),
    ("statistics move", "leaf.copy_(buffers[name])", "pass"),
)

_PREFLIGHT = mutations_of(
    "data.preflight",
    ("full batches count as empty", "(size - 1) % batch_size + 1", "size % batch_size"),
    ("the largest of the last batches", "return min((size", "return max((size"),
)

_SUM = Mutation(
    "engine.partial_batches",
    "the sum of the logits",
    "torch.linspace(-1, 2, len(logits))",
    "torch.ones(len(logits))",
    equivalent="where the sum is constant, as with head: etf, its gradient is rounding, and not exactly 0",
)

_PHASES = mutations_of(
    "engine.phases",
    ("gradients of what rests", "return {name: _moving(self.factors[name], leaf) for", "return {name: leaf for"),
    ("states move on", "_moving(factors[name], leaf, before.get(name))", "leaf"),
    ("states of what rests are forgotten", "leaf, before.get(name))", "leaf)"),
    ("steps of what rests count", "count + _moving(self.factors[name], torch.ones_like(count))", "count + 1"),
    ("factors are switches", "leaf * aligned(factor, leaf).to(leaf.dtype)", "leaf"),
    ("factors that are numbers are switches", "_moving(factor, leaf * factor)", "_moving(factor, leaf)"),
)

_STREAMS = mutations_of(
    "tensor_streams",
    ("the step is ignored", "step {self.step}", "step"),
    ("the purpose is ignored", '"{purpose}, step', '"step'),
    ("all clients draw alike", "clients_N * _STEP + _of", "clients_N * 0 + _of"),
    ("clients draw as the server", '_of_round("client"', '_of_round("server"'),
    ("a round of a tensor is off by one", "round.long() *", "(round.long() + 1) *"),
    ("numbers in another order of axes", ".view(parts, *shape)", ".view(parts, *shape[::-1]).mT"),
    ("one digit less", "digits = 1 - round", "digits = 0 - round"),
    ("the arithmetic shift", "(bits >> by) & ((1 << (64 - by)) - 1)", "bits >> by"),
    ("half the variance", "(-2 * (1", "(-1 * (1"),
    ("half a turn", "(2 * math.pi * angle)", "(math.pi * angle)"),
)

_WEIGHTS = mutations_of(
    "models.weight_layers",
    ("degrees of freedom swapped", "int(self.unbiased)", "int(not self.unbiased)"),
    ("not centred", "return (weight - mean) / (var", "return weight / (var"),
    ("eps outside of the root", "(var + EPS).sqrt())", "var.sqrt() + EPS)"),
    ("variant code without eps", "var.sqrt() + EPS if", "var.sqrt() if"),
    ("no gain of ReLU", "RELU_GAIN * torch", "torch"),
    ("gain of ReLU squared", "math.sqrt(2 / (1 - 1 / math.pi))", "2 / (1 - 1 / math.pi)"),
    ("not over the fan-in", "(self.fan_in * var)", "var"),
    ("scaled and not centred", "return (weight - mean) * scale", "return weight * scale"),
    ("unbiased scaled weights", "correction=0", "correction=1"),
    ("gain dropped", "scale = scale * self.gain.view(var.shape)", "pass"),
    ("no floor", ".clamp_min(LEAST_SPREAD)", ""),
    ("another floor", "LEAST_SPREAD = 1e-4", "LEAST_SPREAD = 1e-3"),
)

_HYBRID = mutations_of(
    "models.hybrid_batch_norm",
    (
        "batch and global statistics swapped",
        "global_mean.lerp(own_mean, share)",
        "global_mean.lerp(own_mean, 1 - share)",
    ),
    ("the variance is the batch's", "self.global_var.lerp(own_var, share)", "own_var"),
    ("twice the slope of the sigmoid", "torch.tanh(self.mix / 2)", "torch.tanh(self.mix)"),
    ("a fixed half", "share = (1 + torch.tanh(self.mix / 2)) / 2", "share = torch.full_like(self.mix, 0.5)"),
    ("the samples are observed", "self._observe(mean, var)", "self._observe(own_mean, own_var)"),
    ("the observed batch is filled up", "weights = self._weights_of(x, axes)", "weights = 1 / x[..., :1].numel()"),
    ("clients of equal weight", "weight = self.samples.sum(-1)\n", "weight = torch.ones_like(self.seen_weight)\n"),
    ("the spread of means within a batch is lost", "(var + (mean - self.global_mean).square())", "var"),
    ("not over the observed part", 'averaged["seen_mean"] / weight', 'averaged["seen_mean"]'),
    ("the spread of means is lost", " - (mean - global_mean).square()).clamp_min(0)", ").clamp_min(0)"),
    ("global statistics of the last round", "global_mean.lerp(mean, self.momentum)", "mean"),
    ("the global variance stands still", 'before["global_var"].lerp(var, self.momentum)', 'before["global_var"]'),
    (
        "observations add up over rounds",
        'for name in ("seen_weight", "seen_mean", "seen_square")},',
        "for name in ()},",
    ),
    ("evaluated with the global mean", '"running_mean": mean,', '"running_mean": global_mean,'),
    ("evaluated with the first variance", '"running_var": var,', '"running_var": before["running_var"],'),
    ("mixtures are shared", 'frozenset({"mix"})', "frozenset()"),
)

_OBSERVED = mutations_of(
    "engine.observed",
    ("always all batches", "None if observation.all else 1", "None"),
    ("always one batch", "None if observation.all else 1", "1"),
    ("samples without weights", " / counts_Y.sum(-1, keepdim=True)", ""),
    ("in evaluation mode", "            layer.train()\n", "            pass\n"),
    ("buffers are changed in place", "tmap(torch.clone, model[1])", "model[1]"),
)

_FINAL = mutations_of(
    "engine.final_statistics",
    ("clients of equal weight", "share * seen[name]", "seen[name] / len(cohort)"),
    ("the participants of the next round", "run.cohort(round)", "run.cohort(round + 1)"),
)

ENGINE_MUTATIONS: tuple[Mutation, ...] = (
    *_OPTIMIZERS, *_LOCAL, *heads.MUTATIONS, *_PARTIAL, *_PREFLIGHT, _SUM, *_PHASES, *_STREAMS, *_WEIGHTS,
    *_HYBRID, *_OBSERVED, *_FINAL,
)  # fmt: skip
