"""What machine code is made of behaves like the sources."""

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import routing
from tools.dataclass_inits import with_inits

SOURCES = Path(str(routing.__file__)).parent
SOURCE = '''
from dataclasses import dataclass, field

@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked for."""

    tokens: int
    only: str | None = None
    """And nothing else."""
    prefix: tuple[int, ...] = ()

    @property
    def is_long(self) -> bool:
        return self.tokens > 10


@dataclass(
    slots=True,
)
class Load:
    requests: int = 0
    names: list[str] = field(default_factory=list)
    row: object = field(default=None, repr=False, compare=False)


@dataclass(slots=True)
class Longer(Load):
    more: int = 1


@dataclass
class Counted:
    total: int

    def __post_init__(self) -> None:
        self.total += 1


class Other:
    kept: int = 3
'''


def run(source: str) -> dict[str, Any]:
    module: dict[str, Any] = {"__name__": __name__}
    exec(compile(source, "<module>", "exec", dont_inherit=True), module)
    return module


@pytest.fixture(params=["as it is", "spelled out"])
def module(request: pytest.FixtureRequest) -> dict[str, Any]:
    return run(SOURCE if request.param == "as it is" else with_inits(SOURCE))


def test_values_are_given_by_place_or_name_or_not_at_all(module: dict[str, Any]) -> None:
    wish = module["Wish"]
    assert (wish(3).tokens, wish(3).only, wish(3).prefix) == (3, None, ())
    assert repr(wish(20, prefix=(1,), only="D1")).endswith("Wish(tokens=20, only='D1', prefix=(1,))")
    assert wish(20).is_long


@pytest.mark.parametrize("values", [(), (1, None, (), 4)])
def test_too_few_and_too_many_values_are_errors(module: dict[str, Any], values: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        module["Wish"](*values)


def test_equal_values_are_equal_and_hash_alike(module: dict[str, Any]) -> None:
    wish = module["Wish"]
    assert len({wish(1), wish(1), wish(2)}) == 2
    with pytest.raises(TypeError):
        hash(module["Load"]())


def test_one_can_be_made_from_another(module: dict[str, Any]) -> None:
    assert replace(module["Wish"](1, "D1"), tokens=2) == module["Wish"](2, "D1")


def test_each_gets_a_list_of_its_own(module: dict[str, Any]) -> None:
    one, other = module["Load"](), module["Load"](names=["P1"])
    one.names.append("D1")
    assert (one.names, other.names, module["Load"]().names) == (["D1"], ["P1"], [])


def test_what_a_field_is_left_out_of_stays_so(module: dict[str, Any]) -> None:
    load = module["Load"]
    assert load(row=1) == load(row=2)
    assert "row" not in repr(load(row=1))


def test_classes_that_cannot_be_spelled_out_are_as_they_were(module: dict[str, Any]) -> None:
    assert (module["Longer"](2).requests, module["Longer"](2).more) == (2, 1)
    assert module["Counted"](1).total == 2
    assert module["Other"].kept == 3


def test_only_those_classes_get_one_that_can_be_compiled() -> None:
    classes = {node.name: node for node in ast.parse(with_inits(SOURCE)).body if isinstance(node, ast.ClassDef)}
    own = {name for name, node in classes.items() if any(getattr(item, "name", "") == "__init__" for item in node.body)}
    assert own == {"Wish", "Load"}


@pytest.mark.parametrize(
    "form",
    [
        "@dataclass(kw_only=True)\nclass C:\n    a: int",
        "@dataclass(init=False)\nclass C:\n    a: int",
        "@dataclass(frozen=True, eq=False)\nclass C:\n    a: int",
        "@dataclasses.dataclass(slots=True)\nclass C:\n    a: int",
        "@dataclass(slots=True)\nclass C:\n    a: int = field(init=False)",
        "@dataclass(slots=True)\nclass C:\n    a: int = dataclasses.field(default=1)",
        "@dataclass(slots=True)\nclass C:\n    a: ClassVar[int] = 1",
        "@dataclass(slots=True)\nclass C:\n    a: int\n    _: KW_ONLY\n    b: int",
        "@dataclass(slots=True)\nclass C:\n    a: int\n    B = 1\n    c: int",
        "@dataclass(slots=True)\nclass C:\n    def a(self) -> int:\n        return 1",
    ],
)
def test_a_form_that_is_not_known_is_refused(form: str) -> None:
    with pytest.raises(ValueError, match=r"known|by its name|together"):
        with_inits(form)


@pytest.mark.parametrize("source", sorted(SOURCES.glob("*.py")), ids=lambda path: path.stem)
def test_every_module_of_the_router_has_forms_that_are_known(source: Path) -> None:
    compile(with_inits(source.read_text()), source.name, "exec")
