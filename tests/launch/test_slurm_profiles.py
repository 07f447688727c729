from __future__ import annotations

from pathlib import Path

import pytest

from flbench.launch.sbatch import Request
from flbench.sweeps.profile import load_profile
from flbench.sweeps.source import SpecError
from flbench.sweeps.spec import Resources

ROOT = Path(__file__).parents[2]

RESOURCES = Resources.model_validate({"cpus": 2, "mem": "2G", "time": "30m"})


def load(tmp_path: Path, text: str, resources: Resources = RESOURCES) -> Request:
    (path := tmp_path / "p.yaml").write_text(text)
    return load_profile(str(path), resources)


def test_profile_and_sweep_together_define_a_request(tmp_path: Path) -> None:
    text = """
partition: gpu
account: me
qos: high
time: 1-00:00:00
cpus: 8
gres: gpu:a100:1
constraint: a100&nvlink
exclude: [n1, "n[3-4]"]
setup:
  - module load cuda
  - export A="b c"
array_parallelism: 5
grace: 2m
"""
    assert load(tmp_path, text) == Request(
        seconds=86400, grace=120, cpus=8, gpus=None, gres="gpu:a100:1", mem=2 * 2**30, partition="gpu", account="me",
        qos="high", constraint="a100&nvlink", exclude="n1,n[3-4]",
        setup=("module load cuda", 'export A="b c"'), parallel=5,
    )  # fmt: skip
    assert load(tmp_path, "partition: cpu") == Request(seconds=1800, cpus=2, mem=2 * 2**30, partition="cpu")


@pytest.mark.parametrize(("gpus", "asked"), [(0, None), (0.5, 1), (1, 1), (1.5, 2)])
def test_a_share_of_a_gpu_requests_a_whole_gpu(tmp_path: Path, gpus: float, asked: int | None) -> None:
    request = load(tmp_path, "time: 1h", Resources(gpus=float(gpus)))
    assert request.gpus == asked
    assert request.has_gpus == bool(asked)


def test_a_single_line_needs_no_list(tmp_path: Path) -> None:
    assert load(tmp_path, "setup: module load cuda").setup == ("module load cuda",)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("partition: gpu\npartiton: gpu", r"p.yaml:2: partiton: unknown key 'partiton'; did you mean 'partition'\?"),
        ("time: soon", r"p.yaml:1: time: expected a wall time like 30m"),
        ("cpus: 0", r"p.yaml:1: cpus: expected .*got 0"),
        ("cpus: two", r"p.yaml:1: cpus: "),
        ("mem: 8", r"p.yaml:1: mem: expected an amount of memory like 512M or 2G, got 8"),
        ("gpus: 1\ngres: gpu:1", r"expected gpus or gres, got both"),
        ("gres: a b", r"p.yaml:1: gres: expected generic resources like gpu:1"),
        ("qos: high\naccount: ''", r"p.yaml:2: account: expected one line of visible text, got ''"),
        ('partition: "a\\n#SBATCH --wrap=evil"', r"p.yaml:1: partition: expected one line of visible text"),
        ('setup: ["a\\nb"]', r"p.yaml:1: setup: expected one line of visible text"),
        ("setup: [1]", r"p.yaml:1: setup"),
        ("grace: 1h", r"p.yaml:1: grace: expected less than the wall time \(1800 s\), got 3600 s"),
        ("- a", r"p.yaml:1: expected a mapping"),
    ],
)
def test_mistakes_are_reported_with_their_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        load(tmp_path, text)


def test_a_time_limit_is_required(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"p.yaml:1: time: a value is required here, or as resources.time in the sweep"):
        load(tmp_path, "partition: cpu", Resources())


@pytest.mark.parametrize("path", sorted((ROOT / "slurm" / "profiles").glob("*.yaml")), ids=lambda path: path.stem)
def test_profiles_of_the_repository_are_valid(path: Path) -> None:
    assert load_profile(str(path), Resources()).seconds > 0


def test_profiles_are_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert load_profile("dev", Resources()).partition == "main"
    for name, says in (
        ("dve", r"--profile dve: unknown profile 'dve'; did you mean 'dev'\?"),
        ("../profiles/dev", "--profile ../profiles/dev: unknown profile"),
        ("nowhere.yaml", "nowhere.yaml: no such file: expected a profile"),
    ):
        with pytest.raises(SpecError, match=says):
            load_profile(name, Resources())
