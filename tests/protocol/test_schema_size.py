"""The cost of a JSON Schema, measured without applying it."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.support.schemas import disguised_expanding_schemas, expanding_schema, tree
from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.json_schema.size import MAX_DEPTH, SchemaLimits, measure, size_faults
from wopr.protocol.json_schema.validation import UserSchema, violations_of
from wopr.protocol.offloading import WorkNeeded

PERSON: JsonObject = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
}


# Forms of a reference to the fourth part of a list, as the library resolves them.
REFERENCE_FORMS = (
    *("#/$defs/l/allOf/+3", "#/$defs/l/allOf/03", "#/$defs/l/allOf/0000000003"),
    *(
        "#/$defs/l/allOf/%33",
        "#/$defs/l/allOf/%2B3",
        "#/%24defs/l/allOf/3",
        "#/$defs/t~0~1/allOf/3",
    ),
    *(
        "#fourth",
        "https://example.com/root#/$defs/l/allOf/3",
        "root#fourth",
        "/root#/$defs/l/allOf/3",
    ),
)


def referring(reference: str) -> JsonObject:
    """Return a schema that refers to one part of itself; data elsewhere has the same anchor."""
    parts: list[Json] = [{}, {}, {}, {"$anchor": "fourth", "type": "string"}]
    return {
        "$id": "https://example.com/root",
        "$ref": reference,
        "default": {"$anchor": "fourth"},
        "$defs": {"l": {"allOf": parts}, "t~/": {"allOf": [{}, {}, {}, {"type": "string"}]}},
    }


def redirected(base: JsonObject) -> JsonObject:
    """Return a schema with a part that has its own base, so that its pointers start there."""
    inner = base | {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"type": "string"}}}
    return {"$ref": "#/$defs/inner/$defs/a", "$defs": {"inner": inner, "b": {}}}


def test_each_doubling_doubles_the_expanded_size() -> None:
    sizes = [measure(expanding_schema(doublings)).subschemas for doublings in (1, 2, 3, 4, 5)]

    assert all(later > 2 * earlier for earlier, later in pairwise(sizes))


def test_an_unused_definition_is_not_counted() -> None:
    assert measure({"$defs": expanding_schema()["$defs"]}).subschemas == 1


def test_a_chain_of_a_thousand_references_is_too_deep() -> None:
    assert measure(expanding_schema(1000)).depth == MAX_DEPTH + 1


@pytest.mark.parametrize(
    "schema",
    [
        tree(),
        {"$ref": "#"},
        {"$ref": ""},
        {"$dynamicAnchor": "a", "$dynamicRef": "#a"},
        {"items": {"unevaluatedItems": False}},
        {"pattern": "^(?=a)(a|aa)+$"},
        {"pattern": "(a*)*\\1$"},
        {"pattern": "^(a*b*+)*d"},
        {"pattern": "(a{1,9}+)*b"},
        {"pattern": "(?x)a* +b"},
        {"pattern": "(?<n>a)\\k<n>"},
        {"invented": [{"const": 1}]},
        {"$ref": "json-schema:///#/$defs/a", "$defs": {"a": {}}},
        {"$defs": {"a": {"$id": "https://example.com/a"}}, "$ref": "#/$defs/a"},
        *(referring(form) for form in REFERENCE_FORMS),
        redirected({"$id": "https://example.com/a"}),
        redirected(
            {"$id": "https://example.com/a", "$schema": "http://json-schema.org/draft-07/schema#"}
        ),
    ],
    ids=str,
)
def test_a_schema_of_unbounded_cost_is_applied_by_a_subprocess(
    schema: JsonObject,
) -> None:
    with pytest.raises(WorkNeeded):
        UserSchema(schema).violations({})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"name": "Ada", "age": 36}, []),
        ({"name": 1}, [(("name",), '1 is not of type "string"')]),
        ({}, [((), '"name" is a required property')]),
    ],
)
def test_a_small_value_is_checked_in_the_process_against_a_small_schema(
    value: Json, expected: list[tuple[tuple[str, ...], str]]
) -> None:
    found = UserSchema(PERSON).violations(value)

    assert [(each.path, each.message) for each in found] == expected


def test_a_large_value_is_checked_by_a_subprocess() -> None:
    with pytest.raises(WorkNeeded):
        UserSchema(PERSON).violations([{"name": "Ada"}] * 100_000)


@pytest.mark.parametrize(
    "holder", ["properties", "patternProperties", "dependentSchemas", "dependencies"]
)
@pytest.mark.parametrize(
    "name", ["const", "default", "enum", "examples", "required", "type", "$defs", "pattern"]
)
def test_a_subschema_is_counted_whatever_the_name_that_it_is_found_under(
    holder: str, name: str
) -> None:
    doublings = 30
    definitions: JsonObject = {
        f"d{n}": {holder: {each: {"$ref": f"#/$defs/d{n + 1}"} for each in (name, "other")}}
        for n in range(doublings)
    }
    schema: JsonObject = {"$ref": "#/$defs/d0", "$defs": definitions | {f"d{doublings}": {}}}

    assert measure(schema).subschemas > 2**doublings


def test_fractions_are_divided_by_a_subprocess() -> None:
    schema = UserSchema({"items": {"multipleOf": 5e-324}})

    assert schema.violations([1.0]) == ()
    with pytest.raises(WorkNeeded):
        schema.violations([1.797e308] * 1000)


def test_a_property_may_have_the_name_of_a_keyword() -> None:
    schema = {"properties": {"$ref": {"type": "string"}, "enum": {"type": "string"}}}

    assert measure(schema).is_bounded
    assert UserSchema(schema).violations({"$ref": 1})


def test_each_limit_is_named_with_the_number_found() -> None:
    limits = SchemaLimits(max_bytes=2000, max_subschemas=10)

    assert [*size_faults({"enum": ["x" * 3000]}, limits)] == [
        "the schema has 3013 bytes, and at most 2000 are allowed"
    ]
    assert [*size_faults({"anyOf": [{}] * 12}, limits)] == [
        "the schema expands to 14 subschemas through its references, and at most 10 are allowed"
    ]


def test_a_discriminator_of_alternatives_does_not_make_their_cost_unknown() -> None:
    forms = [{"type": "object", "properties": {"kind": {"enum": [kind]}}} for kind in ("a", "b")]
    schema = {"anyOf": forms, "discriminator": {"propertyName": "kind", "mapping": {"a": "#/a"}}}

    assert measure(schema).is_bounded


@pytest.mark.parametrize("form", REFERENCE_FORMS)
def test_the_accepted_forms_of_a_reference_are_those_that_the_library_resolves(form: str) -> None:
    assert violations_of(referring(form), None, 1)


def test_a_part_with_its_own_base_is_the_root_of_its_pointers() -> None:
    assert violations_of(redirected({"$id": "https://example.com/a"}), None, 1)


@pytest.mark.parametrize("reference", ["#/$defs/l/allOf/3", "#/$defs/l"])
def test_a_plain_pointer_keeps_a_schema_bounded(reference: str) -> None:
    assert measure(referring(reference)).is_bounded


@pytest.mark.parametrize(
    "reference",
    ["https://example.com/root#/$defs/l", "#/$defs/missing", "#missing", "#/$defs/l/allOf/-0", ""],
)
def test_a_reference_that_names_no_part_of_the_schema_is_refused(reference: str) -> None:
    (fault,) = size_faults(referring(reference), SchemaLimits())

    assert fault.startswith(f"the reference {reference!r} names no part of the schema")


def test_an_index_with_a_sign_or_many_digits_selects_the_item_that_the_library_selects() -> None:
    for form in ("+3", "0000000003"):
        schema = expanding_schema()
        schema["$defs"]["d0"] = {"allOf": [{}, {}, {}, {"$ref": "#/$defs/d1"}]}
        schema["$ref"] = f"#/$defs/d0/allOf/{form}"

        assert measure(schema).subschemas > 2**29


@pytest.mark.parametrize(
    "schema", disguised_expanding_schemas().values(), ids=disguised_expanding_schemas()
)
def test_a_disguised_expanding_schema_is_not_applied_in_the_process(schema: JsonObject) -> None:
    with pytest.raises(WorkNeeded):
        UserSchema(schema).violations({})


def test_any_name_of_dependent_members_counts() -> None:
    names: JsonObject = {f"k{index}": [] for index in range(1000)}
    schema = UserSchema({"items": {"dependentRequired": names}})

    assert schema.violations([{}] * 100) == ()
    with pytest.raises(WorkNeeded):
        schema.violations([{}] * 4000)


@pytest.mark.parametrize("pattern", [r"^\p{L}[\p{L}\p{M}' -]*$", r"\pN{4}", "[a-z]{500}"])
def test_small_classes_of_unicode_characters_are_allowed(pattern: str) -> None:
    assert [*size_faults({"pattern": pattern}, SchemaLimits())] == []


UUID = "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"
MOMENT = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,9})?(Z|[+-]\d{2}:\d{2})$"


@pytest.mark.parametrize("pattern", [UUID, MOMENT, r"^(\d{1,3}\.){3}\d{1,3}$"])
def test_consecutive_repetitions_do_not_multiply(pattern: str) -> None:
    assert [*size_faults({"pattern": pattern}, SchemaLimits())] == []


@pytest.mark.parametrize(
    "pattern",
    ["(a{100}){100}", "a{100}{100}", "a{100}?{100}", "(?x)(a{100})#\n{100}", "(a{99})*{99}"],
)
def test_nested_repetitions_multiply(pattern: str) -> None:
    assert [*size_faults({"pattern": pattern}, SchemaLimits())] != []


@pytest.mark.parametrize("pattern", [r"\pL{100}", r"[^\P{L}]{100}", r"(\pL\pN){20}", r"\pL" * 30])
@pytest.mark.parametrize("keyword", ["pattern", "patternProperties"])
def test_large_classes_of_unicode_characters_are_refused(pattern: str, keyword: str) -> None:
    schema: JsonObject = {keyword: pattern if keyword == "pattern" else {pattern: {}}}

    (fault,) = size_faults(schema, SchemaLimits())

    assert fault.startswith("the patterns of the schema have ")
    assert "at most 20000 are allowed" in fault


def test_a_compiled_schema_counts_with_the_memory_of_its_patterns() -> None:
    letters = UserSchema({"pattern": "^[a-z]+$"}).compiled_bytes
    classes = UserSchema({"pattern": r"^\pL{18}$"}).compiled_bytes

    assert letters < 20_000
    assert classes > 1_000_000


def test_a_schema_never_compiled_here_uses_no_memory() -> None:
    assert UserSchema(tree()).compiled_bytes == 0


@pytest.mark.parametrize("count", [1, 600])
def test_the_states_of_a_pattern_are_not_counted_beyond_a_billion(count: int) -> None:
    schema: JsonObject = {"pattern": "(" * count + "a" + "){999999999}" * count}

    faults = list(size_faults(schema, SchemaLimits()))

    assert measure(schema).states == 10**9
    assert len(faults) == 1
    assert faults[0].startswith("the patterns of the schema have more than 10^9 states")
