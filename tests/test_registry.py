from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import PurePath
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from flbench.errors import InvalidComponent
from flbench.messages import explain, format_scalar, unknown
from flbench.methods.base import Method
from flbench.probes.base import Probe
from flbench.registry import METHODS, Component, Registry, UnknownName, plain, schema_of


@dataclass(frozen=True)
class Plain(Component):
    """No fields."""


@dataclass(frozen=True)
class Knobs(Component):
    """Every type of field."""

    shorthand = "mu"
    version = 3

    mu: Annotated[float, Field(ge=0)] = 0.5
    widths: tuple[int, ...] = (1, 2)
    on: bool = False
    form: Literal["a", "b"] = "a"
    note: str = ""


@dataclass(frozen=True)
class Required(Component):
    """A field without a default."""

    size: int


@pytest.fixture
def things() -> Registry[Component]:
    registry: Registry[Component] = Registry(
        "thing", "flbench.errors", "flbench.test_things", "flbench.registry.Component"
    )
    for name, cls in (("plain", Plain), ("knobs", Knobs), ("required", Required)):
        registry.register(name)(cls)
    return registry


def test_names_keep_the_order_of_registration(things: Registry[Component]) -> None:
    assert list(things.classes) == ["plain", "knobs", "required"]


def test_a_name_can_be_registered_once(things: Registry[Component]) -> None:
    with pytest.raises(InvalidComponent, match="'plain' is registered twice"):
        things.register("plain")(Knobs)


def test_reserved_field_names_are_refused(things: Registry[Component]) -> None:
    @dataclass(frozen=True)
    class Named(Component):
        name: str = ""  # type: ignore[misc]

    with pytest.raises(InvalidComponent, match="cannot have a field called 'name'"):
        things.register("named")(Named)


@pytest.mark.parametrize(
    ("static", "message"),
    [
        (frozenset({"shre"}), "unknown field 'shre' of static of method 'rounded'; did you mean 'share'?"),
        ({"name"}, "unknown field 'name' of static of method 'rounded'"),
        (("share",), "method 'rounded': static must be a frozenset of fields, got ('share',)"),
    ],
)
def test_static_names_fields(static: Any, message: str) -> None:
    @dataclass(frozen=True)
    class Rounded(Method):
        share: float = 0.1

    Rounded.static = static
    with pytest.raises(InvalidComponent, match=re.escape(message)):
        METHODS.register("rounded")(Rounded)
    assert "rounded" not in METHODS.classes


def test_a_component_that_lacks_a_method_of_its_contract_is_refused(things: Registry[Component]) -> None:
    @dataclass(frozen=True)
    class Blind(Probe):
        """A probe that measures nothing."""

    with pytest.raises(InvalidComponent, match=r"thing 'blind' must define measure\(\)"):
        things.register("blind")(Blind)
    assert "blind" not in things.classes


def test_forms_of_one_component(things: Registry[Component]) -> None:
    forms = ["knobs:0.1", {"name": "knobs", "mu": 0.1}, Knobs(mu=0.1)]
    assert [things.parse(form) for form in forms] == [Knobs(mu=0.1)] * 3
    assert things.parse("knobs") == Knobs()


def test_an_integer_and_an_equal_float_are_one_value(things: Registry[Component]) -> None:
    one, also_one = things.parse("knobs:1"), things.parse("knobs:1.0")
    assert one.identity() == also_one.identity()
    assert type(one.identity()["mu"]) is float


@pytest.mark.parametrize(
    ("raw", "path", "message"),
    [
        ({"name": "knobs", "mu": "1"}, ("mu",), "expected a number, got '1'"),
        ({"name": "knobs", "mu": True}, ("mu",), "expected a number, got True"),
        ({"name": "knobs", "on": 1}, ("on",), "expected true or false, got 1"),
        ({"name": "knobs", "on": "yes"}, ("on",), "expected true or false, got 'yes'"),
        ({"name": "knobs", "note": 1}, ("note",), "expected text, got 1"),
        ({"name": "knobs", "widths": [1, "2"]}, ("widths",), "[1, '2']"),
        ({"name": "knobs", "widths": 3}, ("widths",), "expected a list, got 3"),
        ({"name": "knobs", "form": "c"}, ("form",), "expected 'a' or 'b', got 'c'"),
        ({"name": "knobs", "mu": float("nan")}, ("mu",), "finite"),
        ({"name": "knobs", "mi": 1}, ("mi",), "did you mean 'mu'?"),
        ({"name": "plain", "mu": 1}, ("mu",), "there are none"),
        ({"mu": 1}, (), "expected a thing as a name"),
        ("knobs:-1", ("mu",), "expected a value of at least 0, got -1"),
        ("knobs:x", ("mu",), "expected a number, got 'x'"),
        ("plain:1", (), "takes no value after a colon"),
        ("required", ("size",), "a value is required here"),
        (None, (), "got None"),
        (Field, (), "expected a thing"),
    ],
)
def test_wrong_values_name_the_field(
    things: Registry[Component], raw: object, path: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InvalidComponent) as caught:
        things.parse(raw)
    assert caught.value.path == path
    assert message in str(caught.value)


def test_unknown_names_list_the_known_ones_nearest_first(things: Registry[Component]) -> None:
    with pytest.raises(UnknownName) as caught:
        things.parse("knob")
    assert str(caught.value) == (
        "unknown thing 'knob'; did you mean 'knobs'? known: knobs, plain, required; "
        "if a plug-in has it, name its file with --plugin or in $FLBENCH_PLUGINS"
    )


def test_a_foreign_component_is_refused(things: Registry[Component]) -> None:
    @dataclass(frozen=True)
    class Foreign(Component):
        pass

    with pytest.raises(InvalidComponent, match="expected a thing"):
        things.parse(Foreign())


def test_identity_holds_version_and_what_differs_from_defaults(things: Registry[Component]) -> None:
    assert things.parse("knobs").identity() == {"name": "knobs", "version": 3}
    changed = things.parse({"name": "knobs", "widths": [4], "on": True})
    assert changed.identity() == {"name": "knobs", "version": 3, "widths": [4], "on": True}


def test_labels(things: Registry[Component]) -> None:
    assert things.parse("plain").label() == "plain"
    assert things.parse("knobs:0.25").label() == "knobs:0.25"
    assert things.parse({"name": "knobs", "widths": [4], "on": True}).label() == "knobs:0.5(widths=[4], on=true)"


def test_a_method_that_derives_from_another_moves_none_of_the_others() -> None:
    """Rows of reports have this order: a committed page must not change with a new method."""
    ours = [(name, cls.__module__) for name, cls in METHODS.classes.items() if cls.__module__.startswith("flbench.")]
    names = [name for name, _ in ours]
    assert names.index("fedgamma") == names.index("scaffold") + 1
    assert names[:2] == ["fedavg", "balanced-softmax"]
    others = [module for name, module in ours if name not in ("fedavg", "fedgamma")]
    assert others == sorted(others)


def test_entry_points_and_module_load_on_first_use() -> None:
    registry: Registry[Component] = Registry(
        "thing", "flbench.no_such_module", "flbench.test_things", "flbench.registry.Component"
    )
    with pytest.raises(ModuleNotFoundError):
        list(registry.classes)


def test_schema_of_fields(things: Registry[Component]) -> None:
    properties = schema_of(Knobs)["properties"]
    assert properties["mu"] == {"default": 0.5, "minimum": 0, "title": "Mu", "type": "number"}
    assert schema_of(Plain)["properties"] == {}


def test_settings_become_plain_json() -> None:
    assert plain((1, (2.5, "a"))) == [1, [2.5, "a"]]
    assert plain(PurePath("a/b")) == "a/b"
    assert str(plain(-0.0)) == "0.0"


def test_scalars_are_formatted_as_in_yaml() -> None:
    values = (0.1, 1e-5, 1.0, True, (128, 64), "a")
    assert [*map(format_scalar, values)] == ["0.1", "1e-05", "1", "true", "[128, 64]", "a"]


@pytest.mark.parametrize("value", [0.3, 1e-5, 1.0, 0.0316227766017, 1e22, 123456.7, 0.1 + 0.2])
def test_different_numbers_are_never_printed_the_same(value: float) -> None:
    near = math.nextafter(value, math.inf)
    assert format_scalar(value) != format_scalar(near)
    assert (float(format_scalar(value)), float(format_scalar(near))) == (value, near)
    assert len(format_scalar(value)) <= len(repr(value))


def test_messages() -> None:
    assert unknown("norm", "x", []) == "unknown norm 'x'; there are none"
    assert unknown("field", "zzz", ["lr"], "a run") == "unknown field 'zzz' of a run; known: lr"
    assert explain({"type": "something_new", "msg": "Input should be odd", "input": 2}) == "expected odd, got 2"


def test_a_registration_that_forgets_a_part_says_which(things: Registry[Component]) -> None:
    class Plain(Component):
        pass

    with pytest.raises(InvalidComponent, match=r"thing 'own': write @dataclass\(frozen=True\) below its registration"):
        things.register("own")(Plain)
    with pytest.raises(InvalidComponent, match=r"register takes the name of a thing, as in register\('my-own'\)"):
        things.register(Plain)  # type: ignore[arg-type]
