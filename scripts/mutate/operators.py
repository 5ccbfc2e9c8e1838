"""The mutation operators: those of Cosmic Ray, and two of our own, for SQL text and for calls."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import parso
from cosmic_ray.operators.operator import Example, Operator
from cosmic_ray.operators.provider import OperatorProvider

_COMPARISONS = ("Eq_NotEq", "NotEq_Eq", "Lt_LtE", "Lt_GtE", "LtE_Lt", "LtE_Gt", "Gt_GtE", "Gt_LtE", "GtE_Gt", "GtE_Lt",
                "Is_IsNot", "IsNot_Is")  # fmt: skip
_ARITHMETIC = ("Add_Sub", "Sub_Add", "Mul_Div", "BitOr_BitAnd", "BitAnd_BitOr")
_OTHERS = ("ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd", "AddNot",
           "ReplaceUnaryOperator_Delete_Not", "ReplaceBreakWithContinue", "ReplaceContinueWithBreak",
           "ZeroIterationForLoop", "NumberReplacer")  # fmt: skip

_IS_SQL = re.compile(
    r"\b(SELECT|WHERE|INSERT INTO|UPDATE|DELETE FROM|JOIN|EXISTS|CASE|WHEN|GROUP BY|ORDER BY|IS NULL|IS NOT NULL)\b"
    r"|^\W*(AND|OR) |[:.]\w+ (AND|OR) "
)
_CLAUSE = re.compile(r"\b(SET|WHERE|ON|FROM|WHEN|HAVING|SELECT|VALUES)\b")


class Rule(NamedTuple):
    """A pattern in SQL text, and its replacement."""

    found: re.Pattern[str]
    instead: str


RULES = tuple(
    Rule(re.compile(found), instead)
    for found, instead in (
        (r"(?<![<>!:=|\-])=(?![=>])", "<>"),
        (r"<>", "="),
        (r"<=", "<"),
        (r"<=", ">"),
        (r"(?<!-)>=", ">"),
        (r"(?<!-)>=", "<"),
        (r"(?<![<\-])<(?![=>])", "<="),
        (r"(?<![<\-])<(?![=>])", ">="),
        (r"(?<![<=>\-])>(?![=>])", ">="),
        (r"(?<![<=>\-])>(?![=>])", "<="),
        (r"\bAND\b", "OR"),
        (r"(?<!INSERT )(?<!CREATE )\bOR\b", "AND"),
        (r"\bIS NOT NULL\b", "IS NULL"),
        (r"\bIS NULL\b", "IS NOT NULL"),
        (r"(?<!IF )\bNOT EXISTS\b", "EXISTS"),
        (r"(?<!NOT )\bEXISTS\b", "NOT EXISTS"),
        (r"\bNOT IN\b", "IN"),
        (r"(?<!NOT )\bIN \(", "NOT IN ("),
        (r"\bNOT (?!NULL|EXISTS|IN\b|MATERIALIZED)", ""),
        (r"\b[Mm][Aa][Xx]\(", "min("),
        (r"\b[Mm][Ii][Nn]\(", "max("),
        (r"\bgreatest\(", "least("),
        (r"\bleast\(", "greatest("),
        (r"\bLEFT JOIN\b", "JOIN"),
        (r" DESC\b", ""),
    )
)


def _root(leaf: Any) -> Any:
    """The whole text that a piece of a string belongs to: the f-string, and neighbours that are joined to it."""
    node = leaf
    while node.parent is not None and node.parent.type in ("fstring", "strings"):
        node = node.parent
    return node


def _leaves(node: Any) -> Iterator[Any]:
    if hasattr(node, "children"):
        for child in node.children:
            yield from _leaves(child)
    else:
        yield node


def _before(leaf: Any, root: Any) -> str:
    text = ""
    for other in _leaves(root):
        if other is leaf:
            return text
        text += other.get_code()
    return text


class ReplaceInSql(Operator):  # type: ignore[misc]
    """Comparisons, AND and OR, IS NULL, EXISTS, IN, NOT, minimum and maximum, outer joins and order in SQL text."""

    def mutation_positions(self, node: Any) -> Iterable[Any]:
        for start, end, _ in self._places(node):
            line, column = node.start_pos
            if breaks := node.value.count("\n", 0, start):
                line, column = line + breaks, -(node.value.rfind("\n", 0, start) + 1)
            yield (line, column + start), (line, column + end)

    def mutate(self, node: Any, index: int) -> Any:
        start, end, instead = self._places(node)[index]
        node.value = node.value[:start] + instead + node.value[end:]
        return node

    def _places(self, node: Any) -> list[tuple[int, int, str]]:
        if node.type not in ("string", "fstring_string"):
            return []
        root = _root(node)
        if root.parent.type == "simple_stmt" or not _IS_SQL.search(root.get_code()):
            return []
        before = _before(node, root)
        return [
            (match.start(), match.end(), rule.instead)
            for rule in RULES
            for match in rule.found.finditer(node.value)
            if not _is_something_else(before + node.value[: match.start()], match.group())
        ]

    @classmethod
    def examples(cls) -> Iterable[Example]:
        return (Example('x = "SELECT 1 WHERE a = b"', 'x = "SELECT 1 WHERE a <> b"'),)


def _is_something_else(before: str, found: str) -> bool:
    """An assignment, the AND of a BETWEEN, or a comment."""
    line = before.rpartition("\n")[2]
    if "--" in line:
        return True
    if found == "AND":
        between = before.rfind("BETWEEN")
        return between >= 0 and " AND " not in before[between:]
    clauses = _CLAUSE.findall(before)
    return found == "=" and bool(clauses) and clauses[-1] == "SET"


class RemoveCall(Operator):  # type: ignore[misc]
    """Removes a call whose value is not used."""

    def mutation_positions(self, node: Any) -> Iterable[Any]:
        if node.type == "simple_stmt" and self._is_call(node.children[0]):
            yield node.children[0].start_pos, node.children[0].end_pos

    def mutate(self, node: Any, index: int) -> Any:
        nothing = parso.parse("pass").children[0]  # type: ignore[no-untyped-call]
        nothing.prefix = node.get_first_leaf().prefix
        node.children[0] = nothing
        return node

    @staticmethod
    def _is_call(node: Any) -> bool:
        if node.type not in ("atom_expr", "power"):
            return False
        last = node.children[-1]
        return bool(last.type == "trailer" and last.children[0].value == "(")

    @classmethod
    def examples(cls) -> Iterable[Example]:
        return (Example("f(x)\n", "pass\n"),)


def operators() -> dict[str, Operator]:
    """All of them by name."""
    known = OperatorProvider()
    names = [*(f"ReplaceComparisonOperator_{n}" for n in _COMPARISONS),
             *(f"ReplaceBinaryOperator_{n}" for n in _ARITHMETIC), *_OTHERS]  # fmt: skip
    return {**{name: known[name]() for name in names}, "ReplaceInSql": ReplaceInSql(), "RemoveCall": RemoveCall()}
