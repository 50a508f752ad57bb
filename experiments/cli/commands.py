"""Verbs and groups of the command line, with help pages. A group imports a verb of its table when the verb runs.

Rules:

- R1: A group that shows its page, or completes words for a shell, imports no verb. Its table has the first line of
  each verb's docstring.
- R2: Every verb has one help option with the names ``-h``, ``--help`` and ``--help-all``. Only ``--help-all`` shows
  options that are not common.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from thalweg.experiments.cli import pages
from thalweg.experiments.cli.pages import Entry, Page, Panel
from thalweg.experiments.command import PANELS, Option

HELP_OPTIONS = [*pages.HELP, pages.EVERYTHING]
SETTINGS = {"help_option_names": HELP_OPTIONS}
WHOLE = "thalweg.help_all"  # key of a context's meta: whether the page shows every option
PARENT = "thalweg.experiments.cli"
REFUSED: type[Exception] = next(  # Click's exception, which typer does not export
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException" and issubclass(kind, Exception)
)
OPTIONS, ARGUMENTS, COMMANDS = "Options", "Arguments", "Commands"


class Verb(NamedTuple):
    """Verb or group in a group's table.

    ``place`` is the module and name of the function, or of the group's Typer, below ``PARENT``. ``short`` is the first
    line of its docstring. ``settings`` go to Click's context.
    """

    place: str
    short: str
    panel: str = COMMANDS
    settings: Mapping[str, Any] = {}

    def load(self) -> Any:
        """Import the function or the group, and return it."""
        module, _, attribute = self.place.partition(":")
        return getattr(import_module(f"{PARENT}.{module}"), attribute)


class _Paged:
    """Mixin of commands and groups that print help pages of ``pages``."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        before = args[: args.index("--")] if "--" in args else args
        ctx.meta[WHOLE] = pages.EVERYTHING in before  # R2: only --help-all shows all options
        for parameter in self.get_params(ctx):  # type: ignore[attr-defined]
            if not parameter.expose_value and parameter.default is None:  # one of Typer's own flags
                parameter.default = False  # to convert None, a slow library would be imported
        try:
            return super().parse_args(ctx, args)  # type: ignore[misc]
        except REFUSED as error:
            if getattr(error, "ctx", None) is None:
                vars(error)["ctx"] = ctx  # main._refused names the verb's --help
            raise

    def format_help(self, ctx: Any, formatter: Any) -> None:
        page = page_of(self, ctx, whole=ctx.meta.get(WHOLE, False))
        formatter.write(pages.render(page))


class Command(_Paged, TyperCommand):
    """Verb of the command line."""


class Group(_Paged, TyperGroup):
    """Group of verbs. A verb of the table is imported when it runs."""

    table: Mapping[str, Verb] = {}

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self._loaded: dict[str, Any] = {}
        for name, verb in self.table.items():
            self.commands[name] = Command(name=name, help=verb.short)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None and name in self.table:
            command = self.loaded(name)
        return name, command, rest

    def loaded(self, name: str) -> Any:
        """Return the command ``name``. A verb of the table is imported first."""
        if name in self.table and name not in self._loaded:
            self._loaded[name] = _command(name, self.table[name])
        return self._loaded.get(name, self.commands.get(name))


class App(typer.Typer):
    """Typer whose verbs print help pages of ``pages``."""

    def command(self, name: str | None = None, **given: Any) -> Callable[..., Any]:
        return super().command(name, **{"cls": Command, **given})


def group(name: str, about: str, table: Mapping[str, Verb] | None = None, **given: Any) -> App:
    """Return a group of the verbs of a table, or an empty group. ``about``: text of its page, with examples."""
    kind = type("Group", (Group,), {"table": table or {}})
    app = App(
        name=name,
        cls=kind,
        help=about,
        no_args_is_help=True,
        context_settings=SETTINGS,
        pretty_exceptions_enable=False,
        **{"add_completion": False, **given},
    )
    app.callback()(_nothing)
    return app


def _nothing() -> None:
    """Do nothing. A Typer with a callback is a group, also without verbs of its own."""


def _command(name: str, verb: Verb) -> Any:
    """Import a verb and return its command."""
    app = verb.load()
    if not isinstance(app, typer.Typer):
        function, app = app, App(add_completion=False, pretty_exceptions_enable=False)
        app.command(name, context_settings={**SETTINGS, **verb.settings})(function)
    command = typer.main.get_command(app)
    command.name = name
    return command


# --- pages --------------------------------------------------------------------------------------------


def page_of(command: Any, ctx: Any, *, whole: bool = False) -> Page:
    """Return the help page of a command. If ``whole``, the page has the options that are not common too."""
    paragraphs, examples = pages.split_docstring(inspect.cleandoc(command.help or ""))
    parameters = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    options: Mapping[str, Option] = getattr(command.callback, "options", {})
    panels, left_out = _panels(parameters, options, whole=whole)
    commands = _commands(command) if isinstance(command, TyperGroup) else []
    closing = ""
    if left_out:
        noun = "option" if left_out == 1 else "options"
        closing = f"{left_out} more {noun} of this verb: `{ctx.command_path} {pages.EVERYTHING}`"
    return Page(_usage(command, ctx), paragraphs, examples, [*commands, *panels], closing)


def _usage(command: Any, ctx: Any) -> str:
    words = [ctx.command_path, "[OPTIONS]"]
    if isinstance(command, TyperGroup):
        return " ".join([*words, "COMMAND …"])
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            words.append(_value_of(parameter) if parameter.required else f"[{_value_of(parameter)}]")
    return " ".join(words)


def _commands(command: Any) -> list[Panel]:
    """Return the panels of a group's verbs."""
    by_panel: dict[str, list[Entry]] = {}
    for name, verb in command.commands.items():
        panel = command.table[name].panel if name in command.table else COMMANDS
        short = inspect.cleandoc(verb.help or "").partition("\n\n")[0]
        by_panel.setdefault(panel, []).append(Entry(name, " ".join(short.split())))
    return [Panel(title, entries) for title, entries in by_panel.items()]


def _panels(parameters: Sequence[Any], given: Mapping[str, Option], *, whole: bool) -> tuple[list[Panel], int]:
    """Return the panels of arguments and options, common options first, and the number of options left out."""
    common = [parameter for parameter in parameters if parameter.name not in given or given[parameter.name].common]
    rare = [parameter for parameter in parameters if parameter not in common]
    by_panel: dict[str, list[Entry]] = {}
    for parameter in (*common, *rare) if whole else common:
        option = given.get(parameter.name)
        by_panel.setdefault(_panel(parameter, option), []).append(_entry(parameter, option))
    helps = by_panel.setdefault(OPTIONS, [])
    helps.append(Entry(", ".join(pages.HELP), pages.HELP_TEXT))
    if rare:
        helps.append(Entry(pages.EVERYTHING, pages.EVERYTHING_TEXT))
    own = [title for title in by_panel if title not in (ARGUMENTS, OPTIONS, *PANELS)]
    titles = sorted(by_panel, key=[ARGUMENTS, *own, *PANELS, OPTIONS].index)
    return [Panel(title, by_panel[title]) for title in titles], 0 if whole else len(rare)


def _panel(parameter: Any, option: Option | None) -> str:
    if parameter.param_type_name == "argument":
        return ARGUMENTS
    return (option.panel if option is not None else getattr(parameter, "rich_help_panel", None)) or OPTIONS


def _entry(parameter: Any, option: Option | None) -> Entry:
    """Return the entry of an argument or option. ``option``: the Option of the field behind the parameter, or None."""
    text = (option.help if option is not None else parameter.help) or ""
    remarks = []
    if parameter.envvar:
        remarks.append(f"env: {parameter.envvar}")
    if parameter.param_type_name == "option" and parameter.required:
        remarks.append("required")
    if parameter.param_type_name == "option" and parameter.multiple:
        remarks.append("repeatable")
    if default := _default(parameter):
        remarks.append(f"default: {default}")
    if parameter.param_type_name == "argument":
        return Entry(_value_of(parameter), text, remarks)
    flags = [*parameter.opts, *parameter.secondary_opts]
    flags.sort(key=lambda flag: (flag in parameter.secondary_opts, flag.startswith("--")))  # -V, --version
    name = ", ".join(flags)
    if not parameter.is_flag:
        name += f" {_value_of(parameter)}"
    if option is None:
        return Entry(name, text, remarks)
    return Entry(name, text, remarks, option.names() if option.names is not None else {}, option.own)


def _value_of(parameter: Any) -> str:
    """Return the name of a value of an argument or option."""
    return str(parameter.metavar or parameter.name.upper())


def _default(parameter: Any) -> str:
    """Return the default as a help page shows it. The text is empty if there is no default to show."""
    if isinstance(parameter.show_default, str):
        return parameter.show_default
    default = parameter.default
    if not parameter.show_default or default is None or default is False or default == "":
        return ""
    if default is True:
        return str(parameter.opts[0])
    if isinstance(default, list | tuple):
        return ", ".join(map(str, default))
    return f"{default:g}" if isinstance(default, float) else str(default)
