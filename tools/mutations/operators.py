# SPDX-License-Identifier: Apache-2.0
"""Small changes that need no hand, the same in C++, by patterns, and in Python, by its tree.

Each operator is a kind of mistake. Comments, strings, directives and annotations are left alone.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator

SWAPS = {
    "boundary": {"<": "<=", "<=": "<", ">": ">=", ">=": ">"},
    "equality": {"==": "!=", "!=": "==", "is": "is not", "is not": "is", "in": "not in", "not in": "in"},
    "and-or": {"&&": "||", "||": "&&", "and": "or", "or": "and"},
    "arithmetic": {"+": "-", "-": "+", "*": "/", "/": "*", "//": "*", "%": "*"},
    "extreme": {"min": "max", "max": "min", "any": "all", "all": "any"},
    "truth": {"true": "false", "false": "true", "True": "False", "False": "True"},
    "jump": {"break": "continue", "continue": "break"},
}
OPERATORS = {
    **dict.fromkeys(SWAPS, "takes the other one"),
    "condition": "negated",
    "operand": "one part of an and or an or is left out",
    "not": "left out",
    "number": "one more",
    "arguments": "the first two are swapped",
    "call": "a statement that calls, or raises, is left out",
    "assignment": "left out",
    "body": "the function returns at once",
    "return": "an empty value",
    "loop": "never entered",
}


@dataclasses.dataclass(frozen=True)
class Site:
    """A place in a file, and what it becomes."""

    operator: str
    file: str
    start: int
    end: int
    replacement: str

    def applied(self, text: str) -> str:
        return text[: self.start] + self.replacement + text[self.end :]

    def lines(self, text: str) -> tuple[int, str, str]:
        """The number of its first line, and its lines before and after."""
        first, last = text.rfind("\n", 0, self.start) + 1, (text + "\n").find("\n", self.end)
        after = text[first : self.start] + self.replacement + text[self.end : last]
        return text.count("\n", 0, self.start) + 1, text[first:last].strip(), after.strip()


def sites(file: str, text: str) -> list[Site]:
    found = _of_python(text) if file.endswith(".py") else _of_cpp(text)
    return [Site(operator, file, start, end, new) for operator, start, end, new in found if text[start:end] != new]


Found = Iterator[tuple[str, int, int, str]]

_NO_CODE = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<mark>\w*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Fa-f])\'(?:\\.|[^\'\\\n])+\'|'
    r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*|^[ \t]*(?:static_assert|using|template)\b[^\n]*",
    re.DOTALL | re.MULTILINE,
)
_CPP = {
    "boundary": r"(?<= )(<=|>=|<|>)(?= )",
    "equality": r"(?<= )(==|!=)(?= )",
    "and-or": r"(?<= )(&&|\|\|)(?=\s)",
    "arithmetic": r"(?<=[\w)\]] )([-+*/%])(?= [\w(])",
    "extreme": r"(?<=std::)(min|max)(?=[(<])",
    "truth": r"\b(true|false)\b",
    "jump": r"\b(break|continue)(?=;)",
}
_NAME = r"[A-Za-z_][\w.:>-]*"


def _of_cpp(text: str) -> Found:
    code = _NO_CODE.sub(lambda found: re.sub(r"[^\n]", '"', found[0]), text)  # equally long
    for operator, pattern in _CPP.items():
        for one in re.finditer(pattern, code):
            yield operator, one.start(), one.end(), SWAPS[operator][one[0]]
    for one in re.finditer(r"\b(?:if|while) (?:constexpr )?\(", code):
        start, end = _inside(code, one.end() - 1)
        start += code.rfind(";", start, end) - start + 1 if ";" in code[start:end] else 0  # behind an initializer
        yield "condition", start, end, f"!({text[start:end].strip()})"
        yield from _cpp_operands(code, start, end)
    for one in re.finditer(r"\breturn ([^;{}]*);", code):
        yield from _cpp_operands(code, one.start(1), one.end(1))
        if one[1] not in ("true", "false"):
            yield "return", one.start(1), one.end(1), "{}"
    for one in re.finditer(r"(?<![\w)])!(?=[\w(])", code):
        yield "not", one.start(), one.end(), ""
    for one in re.finditer(r"(?<![\w.])\d+\b(?![.'])", code):
        yield "number", one.start(), one.end(), str(int(one[0], 8 if one[0][0] == "0" else 10) + 1)
    for one in re.finditer(rf"{_NAME}\(({_NAME}), ({_NAME})(?=[,)])", code):
        yield "arguments", one.start(1), one.end(2), f"{one[2]}, {one[1]}"
    for one in re.finditer(r"(?m)^ +([A-Za-z_][\w.:>\-\[\]]*\([^;{}]*\));$", code):
        if not re.match(r"(if|for|while|return|switch)\b", one[1]):
            yield "call", one.start(1), one.end(1), ""
    for one in re.finditer(r"(?m)^ +(\*?[\w.\->\[\]]+ [-+|&^]?= [^;{}]*|(?:\+\+|--)[\w.\->]+);$", code):
        yield "assignment", one.start(1), one.end(1), ""
    for one in re.finditer(
        r"(?m)^ *(?:(?:static|inline|virtual) )*(void|Status) [\w:]+\([^;{}]*\)[^;{}=]*\{(?=\n)", code
    ):
        yield "body", one.end(), one.end(), " return;" if one[1] == "void" else " return {};"
    for one in re.finditer(r"\b(?:for|while) \(", code):
        end = _inside(code, one.end() - 1)[1] + 1
        if code[end : end + 2] == " {":
            yield "loop", end + 2, end + 2, " break;"


def _inside(code: str, start: int) -> tuple[int, int]:
    """Return where the text in the parentheses that begin at `start` begins and ends."""
    depth = 0
    for at in range(start, len(code)):
        depth += (code[at] == "(") - (code[at] == ")")
        if depth == 0:
            return start + 1, at
    raise ValueError(f"no parenthesis ends what begins at {start}")


def _cpp_operands(code: str, start: int, end: int) -> Found:
    """Each operand that can be left out of a condition whose operators outside parentheses are equal."""
    depth, marks = 0, []
    for at in range(start, end):
        depth += (code[at] in "([{") - (code[at] in ")]}")
        if depth == 0 and code[at : at + 2] in ("&&", "||"):
            marks.append(at)
    if not marks or len({code[at : at + 2] for at in marks}) > 1:
        return
    yield "operand", start, marks[0] + 2, ""
    for at, following in zip(marks, [*marks[1:], end], strict=True):
        yield "operand", at, following, ""


_SIGNS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=", ast.Is: "is"}
_SIGNS |= {ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in", ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}
_SIGNS |= {ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%"}


def _of_python(text: str) -> Found:
    tree = ast.parse(text)
    begins = [0]
    for line in text.splitlines(keepends=True):
        begins.append(begins[-1] + len(line.encode()))
    raw = text.encode()

    def offset(line: int, column: int) -> int:
        return len(raw[: begins[line - 1] + column].decode())

    def span(node: ast.AST) -> tuple[int, int]:
        return offset(node.lineno, node.col_offset), offset(node.end_lineno, node.end_col_offset)

    def source(node: ast.AST) -> str:
        return text[slice(*span(node))]

    def of(node: ast.AST) -> Found:
        if isinstance(node, (ast.If, ast.While, ast.IfExp)) and source(node.test) != "TYPE_CHECKING":
            yield "condition", *span(node.test), f"not ({source(node.test)})"
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            yield from sign(node.left, node.ops[0], node.comparators[0])
        elif isinstance(node, ast.BinOp) and not {type(node.left), type(node.right)} & {ast.JoinedStr}:
            if not any(isinstance(getattr(part, "value", 0), str) for part in (node.left, node.right)):
                yield from sign(node.left, node.op, node.right)
        elif isinstance(node, ast.BoolOp):
            word, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            for left, right in zip(node.values, node.values[1:], strict=False):
                start, end = span(left)[1], span(right)[0]
                yield "and-or", start, end, re.sub(rf"\b{word}\b", other, text[start:end])
            for value in node.values:
                yield "operand", *span(value), "True" if word == "and" else "False"
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield "not", *span(node), f"({source(node.operand)})"
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
            swapped = SWAPS["truth"].get(source(node))
            yield ("truth", *span(node), swapped) if swapped else ("number", *span(node), str(node.value + 1))
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in SWAPS["extreme"]:
                yield "extreme", *span(node.func), SWAPS["extreme"][node.func.id]
            if len(node.args) > 1 and all(isinstance(one, (ast.Name, ast.Attribute)) for one in node.args[:2]):
                first, second = node.args[:2]
                yield "arguments", span(first)[0], span(second)[1], f"{source(second)}, {source(first)}"
        elif isinstance(node, ast.Raise) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
            yield "call", *span(node), "pass"
        elif isinstance(node, ast.AugAssign) or (
            isinstance(node, ast.Assign) and isinstance(node.targets[0], (ast.Attribute, ast.Subscript))
        ):
            yield "assignment", *span(node), "pass"
        elif isinstance(node, ast.Return) and node.value is not None and source(node.value) != "None":
            yield "return", *span(node.value), "None"
        elif isinstance(node, ast.For):
            yield "loop", *span(node.iter), "()"
        elif isinstance(node, (ast.Break, ast.Continue)):
            yield "jump", *span(node), SWAPS["jump"][source(node)]
        elif isinstance(node, ast.FunctionDef) and source(node.returns or node).startswith("None"):
            body = node.body[ast.get_docstring(node) is not None :]
            if body and not isinstance(body[0], (ast.Pass, ast.Raise)) and body[0].lineno > node.lineno:
                start = span(body[0])[0]
                yield "body", start, start, "return\n" + " " * body[0].col_offset

    def sign(left: ast.expr, kind: ast.AST, right: ast.expr) -> Found:
        written = _SIGNS.get(type(kind), "")
        start, end = span(left)[1], span(right)[0]
        for operator in ("boundary", "equality", "arithmetic"):
            if written in SWAPS[operator]:
                new = text[start:end].replace(written, SWAPS[operator][written])
                yield operator, start, end, new

    def walk(node: ast.AST) -> Found:
        yield from of(node)
        for name, value in ast.iter_fields(node):
            if name not in ("annotation", "returns", "decorator_list"):
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr):
                        yield from walk(child)

    yield from walk(tree)
