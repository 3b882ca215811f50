"""Python source as calls and constants, by its syntax alone: nothing of it is run."""

from __future__ import annotations

import ast
import re
import sys
import textwrap
import warnings
from dataclasses import dataclass, field
from typing import Any

from workbench.errors import RecipeError
from workbench.training.plan.assigning import Assigned, around, assignments, doubt, names_of, scopes, to_object

LONGEST = 200_000  # characters; a script is a page or two
_PLACEHOLDER = re.compile(r",\s*\.\.\.\s*(?=[,)])|(?<=\()\s*\.\.\.\s*,")
_SHELL = re.compile(r"([ \t]*)(?:[!%]|```)")
_INNER_QUOTES = re.compile(r"""\{[^{}"']*(["'])[^{}"']*\1[^{}]*\}""")  # f"{d["q"]}", which Python reads from 3.12 on
_DEEPEST = 40
_OPERATIONS = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b,
}


class Unknown:
    """A value that only running the script could tell."""

    def __init__(self, node: ast.AST) -> None:
        self.text = ast.unparse(node)

    def __str__(self) -> str:
        return self.text if len(self.text) <= 60 else f"{self.text[:57]}..."


_IMAGES = {("type", "image"), ("type", "image_url")}


@dataclass
class Call:
    """One call in the source."""

    name: str  # as its library has it: GRPOConfig, FastLanguageModel.from_pretrained
    line: int
    node: ast.Call
    positional: list[ast.expr]
    keywords: dict[str, ast.expr]
    unpacked: list[ast.expr]  # what stands behind `**`
    bound_to: tuple[str, ...] = ()  # the variables that its result goes into
    assigned: list[Assigned] = field(default_factory=list)  # to attributes of its result, later, in order


@dataclass
class Script:
    """A parsed script."""

    source: str
    all_calls: list[Call] = field(default_factory=list)
    constants: dict[str, tuple[int, Any]] = field(default_factory=dict)  # name -> (line, value or Unknown)
    attributes: list[Assigned] = field(default_factory=list)  # assignments to `tokenizer.pad_token` and its like
    used: set[str] = field(default_factory=set)  # names that stand as values somewhere
    origins: dict[str, str] = field(default_factory=dict)  # a name that is imported -> its module
    options: dict[str, ast.expr] = field(
        default_factory=dict
    )  # of a command line -> what they are if they are not given
    assumed: dict[str, Any] = field(default_factory=dict)  # options that were read so: `args.lr` -> 1e-6
    _nodes: dict[str, list[ast.expr]] = field(default_factory=dict)
    _parents: dict[int, ast.AST] = field(default_factory=dict)
    _walked: list[ast.AST] = field(default_factory=list)  # every node, by line

    def calls(self, *names: str) -> list[Call]:
        """Calls of any of these names, in order; a name that begins with a dot is a method of anything."""
        return [
            call
            for call in self.all_calls
            if any(call.name.endswith(name) if name.startswith(".") else call.name == name for name in names)
        ]

    def image(self, sees: bool) -> tuple[int, bool] | None:
        """(line where an image may go into a prompt, whether it surely does); None: nowhere.

        A part of `type` image beside one of text does, and so does a column `image` where a loader `sees`; elsewhere
        `x["image"]` may be Docker's.
        """
        doubtful = None
        for node in self._walked:
            parts = {pair for element in getattr(node, "elts", ()) for pair in _pairs(element)}
            column = isinstance(node, ast.Subscript) and ast.unparse(node.slice) in ("'image'", "'images'")
            if (("type", "text") in parts and parts & _IMAGES) or (column and sees):
                return node.lineno, True
            if doubtful is None and (column or _IMAGES.intersection(_pairs(node))):
                doubtful = node.lineno, False
        return doubtful

    def assign(self, call: Call, holders: tuple[str, ...] = ()) -> list[tuple[int, str]]:
        """Give a call the later assignments to its result's attributes.

        Args:
            holders: other names of its result, beside the variables that it went into.

        Returns:
            (line, sentence) for each that is left out, because only running the script could tell what becomes of it.
        """
        names = (*call.bound_to, *holders)
        call.assigned, doubtful = to_object(call.node, names, self.attributes, self._nodes, self._parents)
        return doubtful

    def value(self, node: ast.AST, depth: int = 0) -> Any:
        """What an expression stands for, or `Unknown`."""
        if depth > _DEEPEST:
            return Unknown(node)
        if isinstance(node, ast.Constant):
            return Unknown(node) if node.value is Ellipsis or isinstance(node.value, (bytes, complex)) else node.value
        if isinstance(node, (ast.List, ast.Tuple)):
            values = [self.value(part, depth + 1) for part in node.elts]
            return Unknown(node) if any(isinstance(value, Unknown) for value in values) else values
        if isinstance(node, ast.Dict):
            return self._mapping(node, depth)
        if isinstance(node, ast.Name):
            bound = self.bound(node)
            return Unknown(node) if bound is None else self.value(bound, depth + 1)
        if isinstance(node, ast.Attribute):
            text = ast.unparse(node)
            if re.fullmatch(r"(torch|TaskType)\.\w+", text):
                return node.attr
            return self._option(node, text, depth) if node.attr in self.options else Unknown(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Not)):
            value = self.value(node.operand, depth + 1)
            if isinstance(value, Unknown):
                return Unknown(node)
            return (
                not value
                if isinstance(node.op, ast.Not)
                else -value
                if isinstance(value, (int, float))
                else Unknown(node)
            )
        if isinstance(node, ast.BinOp):
            return self._computed(node, depth)
        if isinstance(node, ast.JoinedStr):
            return self._joined(node, depth)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "dict" and not node.args:
            keywords = {word.arg: self.value(word.value, depth + 1) for word in node.keywords}
            return Unknown(node) if None in keywords or _any_unknown(keywords) else keywords
        return Unknown(node)

    def bound(self, node: ast.Name) -> ast.expr | None:
        """What a name stands for where it is used: its last binding before; None where only running the script could tell."""
        parents = self._parents
        mine = scopes(node, parents)
        inside: list[ast.expr] = []
        for scope in mine:
            inside = [one for one in self._nodes.get(node.id, []) if scopes(one, parents)[0] is scope]
            if inside:
                break
        if len({ast.dump(one) for one in inside}) > 1:
            if scope is not mine[0]:
                return None
            before = [one for one in inside if (one.end_lineno, one.end_col_offset) <= (node.lineno, node.col_offset)]
            loops = {id(one) for one in around(node, parents) if isinstance(one, (ast.For, ast.While))}
            again = [one for one in inside if one not in before and loops & {id(o) for o in around(one, parents)}]
            inside = [] if again or not before or doubt(node, before[-1], parents) else before[-1:]
        return inside[0] if inside and isinstance(getattr(inside[0], "ctx", ast.Load()), ast.Load) else None

    def _option(self, node: ast.Attribute, text: str, depth: int) -> Any:
        holders = self._nodes.get(node.value.id, []) if isinstance(node.value, ast.Name) else [node]
        for one in holders:
            made = next((o for o in [one, *around(one, self._parents)] if isinstance(o, ast.stmt)), one)
            if isinstance(one, ast.expr) and "parse" not in ast.unparse(made):
                return Unknown(node)
        value = self.value(self.options[node.attr], depth + 1)
        if value is None or isinstance(value, Unknown):
            return Unknown(node)
        self.assumed[text] = value
        return value

    def _mapping(self, node: ast.Dict, depth: int) -> Any:
        if any(key is None for key in node.keys):
            return Unknown(node)
        keys = [self.value(key, depth + 1) for key in node.keys]
        values = [self.value(value, depth + 1) for value in node.values]
        if any(isinstance(part, (Unknown, list, dict)) for part in keys) or any(
            isinstance(part, Unknown) for part in values
        ):
            return Unknown(node)
        return dict(zip(keys, values, strict=True))

    def _computed(self, node: ast.BinOp, depth: int) -> Any:
        left, right = self.value(node.left, depth + 1), self.value(node.right, depth + 1)
        operation = _OPERATIONS.get(type(node.op))
        if not operation or not all(isinstance(side, (int, float)) for side in (left, right)):
            return Unknown(node)
        try:
            return operation(left, right)
        except (ArithmeticError, ValueError):
            return Unknown(node)

    def _joined(self, node: ast.JoinedStr, depth: int) -> Any:
        parts = []
        for part in node.values:
            inner = part.value if isinstance(part, ast.FormattedValue) else part
            value = self.value(inner, depth + 1)
            formatted = isinstance(part, ast.FormattedValue) and (part.format_spec or part.conversion != -1)
            if isinstance(value, Unknown) or formatted:
                return Unknown(node)
            parts.append(str(value))
        return "".join(parts)


def _any_unknown(values: dict[Any, Any]) -> bool:
    return any(isinstance(value, Unknown) for value in values.values())


def read(text: str, source: str) -> Script:
    """Parse a script. Skipped: a notebook's own commands (`!pip`, `%cd`), Markdown's fences, and `...` among arguments.

    Raises:
        RecipeError: if it is not Python, with the line; or far longer than any script.
    """
    if len(text) > LONGEST:
        raise RecipeError(
            f"{source}: {len(text):,} characters",
            rule=f"a script has at most {LONGEST:,}",
            remedy="paste the part that builds the config and loads the model",
        )
    try:
        return _script(_parsed(text, source), source)
    except (RecursionError, MemoryError) as error:
        raise RecipeError(
            f"{source}: nested too deeply", rule="a script is Python that a person wrote", remedy="paste less of it"
        ) from error


def _script(tree: ast.Module, source: str) -> Script:
    script = Script(source)
    tree.body = [one for node in tree.body for one in (node.body if _is_cell(node) else [node])]
    imported = _imported(tree)
    parents = {id(child): node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    script._parents, script._walked = parents, sorted(ast.walk(tree), key=lambda one: getattr(one, "lineno", 0))
    for node in ast.walk(tree):
        script.attributes += assignments(node)
        parent = parents.get(id(node))
        if isinstance(node, ast.Call):
            script.all_calls.append(call := _call(node, imported, parents))
            if call.name.endswith(".add_argument") and call.positional:
                _option(call, script.options)
        elif isinstance(node, ast.arg):
            script._nodes.setdefault(node.arg, []).append(node)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            script.used.add(node.id)
        elif isinstance(node, ast.Name) and not (isinstance(parent, ast.AnnAssign) and parent.value is None):
            plain = isinstance(parent, (ast.Assign, ast.AnnAssign, ast.NamedExpr))
            whole = parents.get(id(parent))  # `a, b = 1, 2`
            values = getattr(whole.value, "elts", []) if isinstance(whole, ast.Assign) else []
            if isinstance(parent, ast.Tuple) and len(values) == len(parent.elts):
                script._nodes.setdefault(node.id, []).append(values[parent.elts.index(node)])
            else:
                script._nodes.setdefault(node.id, []).append(parent.value if plain else node)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            module = getattr(node, "module", None)
            script.origins |= {one.asname or one.name: module or one.name for one in node.names}
    script.all_calls.sort(key=lambda call: (call.line, call.node.col_offset))
    script.attributes.sort(key=lambda one: one.line)
    for name, nodes in script._nodes.items():
        nodes.sort(key=lambda one: (one.lineno, one.col_offset))
        alike = len({ast.dump(one) for one in nodes}) == 1 and isinstance(nodes[0], ast.expr)
        script.constants[name] = (nodes[0].lineno, script.value(nodes[0]) if alike else Unknown(ast.Name(name)))
    script.assumed.clear()
    return script


def _is_cell(node: ast.stmt) -> bool:
    # marimo's notebooks: a function for each cell, whose parameters are other cells' names.
    return isinstance(node, ast.FunctionDef) and any("app.cell" in ast.unparse(one) for one in node.decorator_list)


def _option(call: Call, options: dict[str, ast.expr]) -> None:
    names = [one.value for one in call.positional if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    name = next((one for one in names if one.startswith("--")), names[0] if names else "")
    action = getattr(call.keywords.get("action"), "value", None)
    unsaid = ast.Constant({"store_true": False, "store_false": True}.get(action))
    dest = getattr(call.keywords.get("dest"), "value", name.lstrip("-").replace("-", "_"))
    options[dest] = call.keywords.get("default", unsaid)


def _parsed(text: str, source: str) -> ast.Module:
    plain = _without_shell(text)
    attempts = [text, plain, _PLACEHOLDER.sub("", plain)]
    for attempt in attempts:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about the script's style, and there is no file to name
                return ast.parse(attempt)
        except (SyntaxError, ValueError) as error:
            last = error
            if str(error).startswith("f-string") and len(attempts) < 100:
                line = attempt.splitlines()[error.lineno - 1]
                other = _INNER_QUOTES.sub(lambda found: found[0].replace(found[1], "'\""[found[1] == "'"]), line)
                attempts += [attempt.replace(line, other)] if other != line else []
    line = (last.text or "").strip() if isinstance(last, SyntaxError) else ""
    new = str(last).startswith("f-string") and sys.version_info < (3, 12)
    raise RecipeError(
        source + (f", line {last.lineno}: {line}" if isinstance(last, SyntaxError) else ""),
        rule=f"a script is Python ({getattr(last, 'msg', None) or last})"
        + (f"; this is {sys.version_info[0]}.{sys.version_info[1]}, and 3.12 allows more in an f-string" * new),
        remedy="correct that line, or paste less",
    ) from None


def _without_shell(text: str) -> str:
    # A notebook's own lines become `pass`, for the `if` that one may stand in; what a backslash goes on with goes, too.
    lines, goes_on = [], False
    for line in text.splitlines():
        shell = _SHELL.match(line)
        lines.append("" if goes_on or (shell and "```" in line) else f"{shell[1]}pass" if shell else line)
        goes_on = bool(goes_on or shell) and line.rstrip().endswith("\\")
    return textwrap.dedent("\n".join(lines))


def _imported(tree: ast.Module) -> dict[str, str]:
    # `from trl import GRPOConfig as Config`: the name here -> the name there.
    return {
        alias.asname: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname
    }


def _call(node: ast.Call, imported: dict[str, str], parents: dict[int, ast.AST]) -> Call:
    parts = ast.unparse(node.func).split(".") if isinstance(node.func, (ast.Name, ast.Attribute)) else [""]
    parts[0] = imported.get(parts[0], parts[0])
    if parts[0] in ("trl", "peft", "unsloth", "transformers", "datasets") and len(parts) > 1:
        parts = parts[1:]
    return Call(
        name=".".join(parts),
        line=node.lineno,
        node=node,
        positional=[part for part in node.args if not isinstance(part, ast.Starred)],
        keywords={word.arg: word.value for word in node.keywords if word.arg},
        unpacked=[word.value for word in node.keywords if not word.arg],
        bound_to=names_of(node, parents),
    )


def _pairs(node: ast.AST) -> list[tuple[Any, Any]]:
    # The keys of a dictionary and their values, as far as both are written out.
    if not isinstance(node, ast.Dict):
        return []
    pairs = zip(node.keys, node.values, strict=True)
    return [(k.value, v.value) for k, v in pairs if isinstance(k, ast.Constant) and isinstance(v, ast.Constant)]
