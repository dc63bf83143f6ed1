"""Gives dataclasses an `__init__` that mypyc compiles; the one that `dataclass` makes is interpreted, 1 µs a piece."""

import ast
from collections.abc import Iterator

KNOWN_SETTINGS = frozenset({"frozen", "slots"})
KNOWN_FIELD_SETTINGS = frozenset({"default", "default_factory", "repr", "compare"})
NO_FIELDS = ("ClassVar", "InitVar", "KW_ONLY")


def with_inits(source: str) -> str:
    """The same module; each dataclass without bases or an `__init__` of its own has it written out after its fields.

    Frozen ones can be assigned to afterwards: that they are not is for the sources, and their tests, to show. Raises
    `ValueError` for a form of dataclass that this does not know.
    """
    lines = source.splitlines()
    for node in reversed(ast.parse(source).body):
        if isinstance(node, ast.ClassDef) and (decorator := _decorator(node)) and _can_be_given_one(node):
            first, last = _fields(node)
            lines[last:last] = ["", *_init(first)]
            _set_decorator(lines, decorator)
    return "\n".join(lines) + "\n"


def _decorator(node: ast.ClassDef) -> ast.Call | None:
    for decorator in node.decorator_list:
        if ast.unparse(decorator).startswith("dataclasses."):
            raise ValueError(f"{node.name}: import `dataclass` by its name")
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "dataclass":
            return decorator
    return None


def _can_be_given_one(node: ast.ClassDef) -> bool:
    own = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
    return not node.bases and not own & {"__init__", "__post_init__"}


def _fields(node: ast.ClassDef) -> tuple[list[ast.AnnAssign], int]:
    """And the line where they end, with what is said of the last one."""
    found: list[ast.AnnAssign] = []
    last = node.lineno
    rest = list(node.body)
    while rest and isinstance(rest[0], ast.AnnAssign | ast.Expr):
        item = rest.pop(0)
        last = item.end_lineno or last
        if isinstance(item, ast.AnnAssign):
            found.append(item)
    if not found or any(isinstance(item, ast.AnnAssign) for item in rest):
        raise ValueError(f"{node.name}: its fields must stand together, before all else")
    for field in found:
        kind = ast.unparse(field.annotation)
        if any(word in kind for word in NO_FIELDS):
            raise ValueError(f"{node.name}: {kind} is no field that is known here")
    return found, last


def _init(fields: list[ast.AnnAssign]) -> Iterator[str]:
    parameters, assignments = ["self"], []
    for field in fields:
        name, kind = ast.unparse(field.target), ast.unparse(field.annotation)
        default, factory = _default(field.value)
        if factory is not None:
            parameters.append(f"{name}: {kind} | None = None")
            assignments.append(f"self.{name}: {kind} = ({factory})() if {name} is None else {name}")
            continue
        parameters.append(f"{name}: {kind}" + (f" = {default}" if default else ""))
        assignments.append(f"self.{name} = {name}")
    yield f"    def __init__({', '.join(parameters)}) -> None:"
    yield from (f"        {assignment}" for assignment in assignments)


def _default(value: ast.expr | None) -> tuple[str, str | None]:
    """As source text, and the factory in its place; the first is empty when there is none."""
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "dataclasses.field":
        raise ValueError(f"{ast.unparse(value)}: import `field` by its name")
    if not isinstance(value, ast.Call) or ast.unparse(value.func) != "field":
        return ("" if value is None else ast.unparse(value)), None
    settings = _settings(value, KNOWN_FIELD_SETTINGS)
    return settings.get("default", ""), settings.get("default_factory")


def _settings(call: ast.Call, known: frozenset[str]) -> dict[str, str]:
    settings = {setting.arg or "**": ast.unparse(setting.value) for setting in call.keywords}
    if call.args or not settings.keys() <= known:
        raise ValueError(f"{ast.unparse(call)}: only {', '.join(sorted(known))} are known here")
    return settings


def _set_decorator(lines: list[str], decorator: ast.Call) -> None:
    settings = _settings(decorator, KNOWN_SETTINGS)
    if settings.pop("frozen", None) == "True":
        settings["unsafe_hash"] = "True"
    settings["init"] = "False"
    words = ", ".join(f"{name}={value}" for name, value in settings.items())
    lines[decorator.lineno - 1 : decorator.end_lineno] = [f"@dataclass({words})"]
