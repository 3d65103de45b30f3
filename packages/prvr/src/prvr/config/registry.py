"""A registry of named parts, each with its settings and a line of documentation."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pkgutil import resolve_name
from typing import Any, Generic, TypeVar, cast

from pydantic import AfterValidator, GetCoreSchemaHandler, TypeAdapter
from pydantic_core import CoreSchema, core_schema

from prvr.errors import InputError, unknown_name
from prvr.extensions import SIBLING, extensions

P = TypeVar("P")


@dataclass(frozen=True)
class Entry(Generic[P]):
    """A registered part.

    Args:
        name: the name that a configuration uses.
        source: the part itself, or "module:attribute" of one that is imported when it is first used.
        settings: dataclass of the settings of the part; None if it has none.
        description: one line of documentation.
        needs: what the part needs, in words that the owner of the registry defines.
        module: the name of the module that registered it.
        check: gives messages that say why a configuration cannot be combined with the part; None if any can.
    """

    name: str
    source: P | str
    settings: Any
    description: str
    needs: tuple[str, ...]
    module: str
    check: Callable[[Any], Iterable[str]] | None = None

    def problems(self, config: Any) -> Iterable[str]:
        """Messages that say why a configuration cannot be combined with the part."""
        return () if self.check is None else self.check(config)

    @property
    def part(self) -> P:
        """The class or function that was registered."""
        if not isinstance(self.source, str):
            return self.source
        return cast(P, resolve_name(self.source))

    @property
    def is_own(self) -> bool:
        """Whether a module of somebody else has registered it, and not prvr, prvr-search or the program that runs."""
        return self.module.partition(".")[0] not in ("prvr", SIBLING, "__main__")


class Registry(Generic[P]):
    """Parts by name, in the order of registration.

    Reading a configuration must not import torch. So a part in a module that imports torch is registered as
    "module:attribute", beside its settings, and imported only when `Entry.part` is read. What the packages
    `prvr.LEAVES` have for a registry is added when it is first read, after the parts of the core.

    Args:
        what: what the parts are, in the singular, for messages.

    Examples:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class PowerSettings:
        ...     exponent: float = 2.0
        >>> functions = Registry("function")
        >>> functions.register("square_root", "math:sqrt", "The positive square root.")
        >>> functions.register("power", "math:pow", "x to a fixed power.", PowerSettings)
        >>> functions["square_root"].part(9.0), functions["power"].settings(), functions.names
        (3.0, PowerSettings(exponent=2.0), ('square_root', 'power'))
        >>> functions["squareroot"]
        Traceback (most recent call last):
        ...
        prvr.errors.InputError: unknown function 'squareroot'; did you mean square_root? Known: square_root, power. For
        your own function, pass --import MODULE, or import its module first
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self._entries: dict[str, Entry[P]] = {}
        self._is_complete = False

    @property
    def _all(self) -> dict[str, Entry[P]]:
        if not self._is_complete:
            self._is_complete = True  # now: what is imported may read this registry
            for _ in extensions(self.what, others=False):  # importing a module registers its parts
                pass
        return self._entries

    def register(
        self,
        name: str,
        part: P | str,
        description: str,
        settings: type | None = None,
        needs: Iterable[str] = (),
        check: Callable[[Any], Iterable[str]] | None = None,
    ) -> None:
        """Add a part.

        Args:
            name: the name that a configuration uses.
            part: a class or a function, or "module:attribute" of one.
            description: one line of documentation.
            settings: dataclass of the settings of the part, if it has any.
            needs: what the part needs.
            check: see `Entry`.

        Raises:
            InputError: the name is taken.
        """
        if name in self._entries:
            raise InputError(f"{self.what} {name!r} is already registered: choose another name")
        module = sys._getframe(1).f_globals.get("__name__", "__main__")
        self._entries[name] = Entry(name, part, settings, description, tuple(needs), module, check)

    @property
    def names(self) -> tuple[str, ...]:
        """All names, in the order of registration."""
        return tuple(self._all)

    def __getitem__(self, name: str) -> Entry[P]:
        """The entry of a name.

        Raises:
            InputError: the name is unknown; the message lists the closest names and all names.
        """
        if name not in self._all:
            own = f"For your own {self.what}, pass --import MODULE, or import its module first"
            raise InputError(f"{unknown_name(self.what, name, self._all)}. {own}")
        return self._all[name]

    def __iter__(self) -> Iterator[Entry[P]]:
        return iter(self._all.values())

    def __contains__(self, name: object) -> bool:
        return name in self._all


Makers = Registry[Callable[..., Any]]
"""A registry of parts that are called to make something."""


def named_parts(registries: Mapping[str, Registry[Any]], record: Any) -> dict[str, Entry[Any]]:
    """The registered parts that the fields of a record name.

    Args:
        registries: the registry of each field, by its name.
        record: a dataclass with these fields.
    """
    return {name: registry[getattr(record, name)] for name, registry in registries.items()}


def own_modules(entries: Iterable[Entry[Any]]) -> list[str]:
    """The modules of others that registered some parts, sorted: those to import before the parts can be used."""
    return sorted({entry.module for entry in entries if entry.is_own})


def module_of(name: str) -> str:
    """The module that a name under `imports` stands for: itself, or the one that an installed package gives the name.

    A package does so with an entry point of the group `prvr.parts`.
    """
    return next((point.module for point in entry_points(group="prvr.parts", name=name)), name)


def missing_modules(names: Any) -> list[str]:
    """Of the modules that a file names under `imports`, those that are not imported."""
    listed = [str(name) for name in names] if isinstance(names, list | tuple) else []
    return [name for name in listed if name not in sys.modules and module_of(name) not in sys.modules]


def registered(registry: Registry[Any]) -> AfterValidator:
    """Refuses names that are not registered."""
    return AfterValidator(lambda name: registry[name].name)


@dataclass(frozen=True)
class Chosen:
    """Marks a field whose record is of the class that was registered as the settings of the part that it names.

    The value is a mapping with the key `kind`, the name of the part alone, or the record.

    Args:
        registry: the parts.
        default: the one of a mapping without the key.
    """

    registry: Registry[Any]
    default: str

    @property
    def records(self) -> tuple[type, ...]:
        """The settings of all parts."""
        return tuple(entry.settings for entry in self.registry)

    def __call__(self, value: Any) -> Any:
        """The record of a value, validated."""
        if isinstance(value, self.records):
            return value
        value = {"kind": value} if isinstance(value, str) else value
        name = str(value.get("kind", self.default)) if isinstance(value, Mapping) else self.default
        return _adapter(self.registry[name].settings).validate_python(value)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self)


@cache
def _adapter(record: type) -> Any:
    return TypeAdapter(record)
