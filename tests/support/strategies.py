"""Hypothesis strategies that several tests share."""

from __future__ import annotations

from hypothesis import strategies as st

from penstock.field_types import ArrayOf, DecimalOf, Kind, Simple, StructOf

names = st.sampled_from(["a", "b", "long", "struct", "x_1"])
kinds: st.SearchStrategy[Kind] = st.recursive(
    st.sampled_from([Simple(name) for name in ("long", "double", "string", "boolean", "date", "timestamp")])
    | st.integers(1, 38).flatmap(lambda p: st.builds(DecimalOf, st.just(p), st.integers(0, p))),
    lambda inner: (
        st.builds(ArrayOf, inner)
        | st.builds(
            lambda members: StructOf(tuple(members.items())), st.dictionaries(names, inner, min_size=1, max_size=3)
        )
    ),
    max_leaves=6,
)
