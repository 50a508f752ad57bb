"""Options of a verb from the fields of a struct, which have a name, a type, a default and a help text.

An option may name the user's own code, ``package.module:attribute``.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, wraps
from importlib.machinery import PathFinder
from pathlib import Path
from types import GenericAlias, NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec
import typer

from thalweg.emulation.links import units
from thalweg.experiments.command import Option, options_of
from thalweg.middleware.errors import UsageError, nearest
from thalweg.middleware.platform.python import append_folder

Unit = Callable[[Any], Any]  # a reader of emulation.links.units
RATES = (units.parse_rate, units.rate_bps)
KINDS: Mapping[Unit, str] = {
    **dict.fromkeys(RATES, "RATE"),
    units.seconds: "TIME",
    units.share: "SHARE",
    units.size_bytes: "SIZE",
    units.bytes_per_s: "RATE",
}
_Struct = TypeVar("_Struct", bound=msgspec.Struct)


class Given(dict[str, Any]):
    """Fields of a struct that the command line or the environment gives, with their values.

    ``said``: names of the fields that the command line gives.
    """

    said: tuple[str, ...] = ()


class Refused(typer.BadParameter):
    """Refusal of a value on the command line. Its message is the whole sentence."""

    def format_message(self) -> str:
        return self.message


def takes(
    struct: type[msgspec.Struct], fields: Mapping[str, Mapping[str, Any]] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the decorator of a verb whose first parameter is a ``struct``, or the ``Given`` fields of a ``struct``.

    The verb's further parameters stay Typer's own. ``fields``: the fields that the verb takes, with changes of their
    Options. None: every field without changes.
    """
    options = options_of(struct)
    if fields is not None:
        options = {
            name: (options[name][0], msgspec.structs.replace(options[name][1], **changes))
            for name, changes in fields.items()
        }
    defaults = {field.name: field.default for field in msgspec.structs.fields(struct)}

    def expand(verb: Callable[..., None]) -> Callable[..., None]:
        first, *own = inspect.signature(verb, eval_str=True).parameters.values()

        @wraps(verb)
        def command(context: typer.Context, **words: Any) -> None:
            values = Given()
            for name, (kind, option) in options.items():
                word, source = words.pop(name), context.get_parameter_source(name)
                if source is not None and source.name != "DEFAULT":
                    values[name] = _value(word, kind, option)
                    values.said += (name,) * (source.name == "COMMANDLINE")
            verb(values if first.annotation is Given else make(struct, values, context.command_path), **words)

        by_name = inspect.Parameter.KEYWORD_ONLY
        parameters = [
            inspect.Parameter("context", by_name, annotation=typer.Context),
            *(_parameter(name, kind, option, defaults[name]) for name, (kind, option) in options.items()),
            *(parameter.replace(kind=by_name) for parameter in own),
        ]
        vars(command)["__signature__"] = inspect.Signature(parameters)
        vars(command)["options"] = {name: option for name, (_, option) in options.items()}  # for the help page
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return expand


def make(struct: type[_Struct], given: Mapping[str, Any], command: str) -> _Struct:
    """Return the struct of the given fields, with defaults. Raise UsageError if a value does not fit."""
    try:
        return msgspec.convert(given, struct)
    except msgspec.ValidationError as error:
        raise UsageError(f"an option does not fit: {error}; see {command} --help") from None


def _parameter(name: str, kind: Any, option: Option, default: Any) -> inspect.Parameter:
    """Return the parameter from which typer makes the option."""
    plain, shown = _plain(kind), option.shown
    optional = plain is not kind
    several = get_origin(plain) is tuple
    if several:
        plain, optional, default = get_args(plain)[0], True, list(default) or None
    flag = option.named(name)
    metavar, parser = _metavar(plain, option), _parser(plain, option, flag)
    if plain is bool and (optional or default):
        flag = f"{flag}/--no-{flag.removeprefix('--')}"
    if option.typed is not None:
        plain = option.typed
    elif get_origin(plain) is Literal:
        plain = str
    info = typer.Option(
        flag,
        *option.also,
        help=option.help,
        metavar=metavar,
        envvar=option.envvar,
        show_default=shown or True,
        parser=parser,
        autocompletion=_completer(option, kind),
        rich_help_panel=option.panel or None,
    )
    if several:
        plain = GenericAlias(list, (plain,))
    annotated: Any = Annotated  # the type is known only at run time
    annotation = annotated[(plain | None) if optional else plain, info]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _metavar(plain: Any, option: Option) -> str | None:
    """Return the word that stands for a value in the help. None: typer's own word."""
    if option.metavar is not None:
        return option.metavar
    if option.unit is not None:
        return KINDS.get(option.unit)
    if get_origin(plain) is Literal:
        return "NAME" if option.names is not None else "|".join(get_args(plain))
    if plain in (int, float):
        return "N"
    if plain is str:
        return "NAME"
    return "PATH" if option.typed is not None and issubclass(option.typed, Path) else None


def _parser(plain: Any, option: Option, flag: str) -> Callable[[Any], Any] | None:
    """Return the reader of a value, for quantities, choices and numbers. None: typer's own reader."""
    if option.unit is not None:
        return reader(option.unit, flag)
    if get_origin(plain) is Literal:
        return choice_reader(option.names or partial(tuple, get_args(plain)), flag)
    return number_reader(plain, flag, option.least) if plain in (int, float) else None


def _completer(option: Option, kind: Any) -> Callable[[str], list[str]] | None:
    """Return the function that completes a value in a shell, from the registered names or the choices."""
    plain = _plain(kind)
    choices = get_args(plain) if get_origin(plain) is Literal else ()
    if option.names is None and not choices:
        return None

    def complete(incomplete: str) -> list[str]:
        known = choices if option.names is None else option.names()
        return [name for name in known if name.startswith(incomplete)]

    return complete


def quantity(unit: Unit, flag: str, said: str, *, shown: str | bool = True) -> Any:
    """Return the option of a quantity, for a verb's own parameter. ``said``: help text. ``shown``: default to show."""
    return typer.Option(flag, help=said, metavar=KINDS[unit], parser=reader(unit, flag), show_default=shown)


def number(kind: type[int] | type[float], flag: str, text: str, **more: Any) -> Any:
    """Return the option of a number, for a verb's own parameter. ``more``: ``least``, and arguments of Typer."""
    least = more.pop("least", None)
    return typer.Option(flag, help=text, parser=number_reader(kind, flag, least), **{"metavar": "N", **more})


def choice(choices: Sequence[str], flag: str, text: str) -> Any:
    """Return the option of a choice among a few words, for a verb's own parameter."""
    return typer.Option(flag, help=text, metavar="|".join(choices), parser=choice_reader(partial(tuple, choices), flag))


def number_reader(kind: type[int] | type[float], flag: str, least: float | None = None) -> Callable[[Any], Any]:
    """Return the reader of a number that an option gives.

    The reader raises Refused for a word that is no number, and for a number below ``least``.
    """
    wanted = "a whole number" if kind is int else "a number"
    if least is not None:
        wanted += f", at least {least}"

    def read(value: Any) -> Any:
        try:
            count = kind(value)
        except ValueError:
            raise Refused(f"{flag} is {value!r}; give {wanted}") from None
        if least is not None and count < least:
            raise Refused(f"{flag} is {value}; give {wanted}")
        return count

    return read


def choice_reader(choices: Callable[[], Iterable[str]], flag: str) -> Callable[[Any], Any]:
    """Return the reader of a choice among a few words. The reader raises Refused for a word that is no choice."""

    def read(value: Any) -> Any:
        if value not in (known := [*choices()]):
            raise Refused(f"{flag} is {value!r}; {nearest(value, known)}")
        return value

    return read


def reader(unit: Unit, flag: str) -> Unit:
    """Return the reader of a quantity that an option gives. Its errors name the option, and remarks become notes."""

    def read(value: Any) -> Any:
        try:
            amount = unit(value)
        except UsageError as error:
            raise Refused(f"{flag}: {error}") from None
        if unit in RATES and (remark := units.remark(value)):
            print(f"note: {flag}: {remark}", file=sys.stderr)
        return amount

    return read


def _plain(kind: Any) -> Any:
    """Return ``int`` of ``int | None``, and a type without None as it is."""
    if get_origin(kind) in (UnionType, Union):
        (kind,) = (member for member in get_args(kind) if member is not NoneType)
    return kind


def _value(word: Any, kind: Any, option: Option) -> Any:
    """Return the value of a field for the word that is given."""
    if option.parse is not None:
        return option.parse(word)
    return tuple(word) if get_origin(_plain(kind)) is tuple else word


def find_own_code(names: Iterable[str]) -> None:
    """Import from the working directory too, if only that directory has the module of a name in ``names``.

    The directory comes last, so a file there hides no installed module. Names that are no import paths are skipped.
    """
    for name in names:
        module, colon, _ = name.partition(":")
        package = module.partition(".")[0]
        if not colon or not package.isidentifier() or package in sys.modules or importlib.util.find_spec(package):
            continue
        try:
            here = os.getcwd()
        except OSError:  # the working directory has been removed
            return
        if PathFinder.find_spec(package, [here]) is not None:
            append_folder(here)
